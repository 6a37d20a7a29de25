"""torch's device meshes: none of a world that is over is ever taken for one of the present world.

torch compares meshes by value: by their ranks, layout, device type and names. So a mesh that is built again in a new
world equals the old one, whose groups are gone, and whatever torch has cached by the old one it finds by the new one:

- DTensor's propagated shardings, in Python and in C++, both for each thread; the plans of its redistributions; expanded
  strategies; tensors' metadata; the estimated costs of collectives
- compiled graphs that have a mesh among their inputs: their guards compare it
  (softrun.runtime.groups.leftovers.compiled)

A cached result names the old mesh, so the next collective looks for a group that does not exist, or finds another one
under its name. Here meshes of different worlds are different: their worlds are part of what torch compares. What was
cached for a world that is over can then never be found again; it is dropped, and its meshes let go of their groups.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_MESH = "torch.distributed.device_mesh"

_world = 0
# Of the present world, by id, since equal ones are not the same. A trainer may take a slice, another mesh, each step.
_meshes: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def begin_world(number: int) -> None:
    """The meshes that are built from now on belong to this world."""
    global _world
    _world = number
    mark_meshes()


def mark_meshes() -> None:
    """Have each new mesh marked with its world. Idempotent. Never imports torch: call it again when it is imported."""
    mesh: Any = getattr(sys.modules.get(_MESH), "DeviceMesh", None)
    if mesh is not None and not hasattr(mesh.__init__, "softrun_marks"):
        marking: Any = functools.wraps(mesh.__init__)(_marking(mesh.__init__))
        marking.softrun_marks = True
        mesh.__init__ = marking


def end_world() -> None:
    """The groups are gone: let the meshes of the world go as well, and all that torch has cached for them."""
    for mesh in list(_meshes.values()):
        _retire(mesh)
    _meshes.clear()
    for clear in _CLEARS:
        with suppress(AttributeError, KeyError):  # this release of torch has no such cache, or nobody has used it
            clear()


def _marking(init: Callable[..., None]) -> Callable[..., None]:
    def marking(self: Any, *args: Any, **options: Any) -> None:
        try:
            init(self, *args, **options)
        except RuntimeError as error:
            if _world and (why := _does_not_fit(self)):
                raise RuntimeError(why) from error
            raise
        if _world and getattr(self, "_thread_id", 0) is None:
            self._thread_id = _world  # torch's own mark for meshes of threads that are ranks; None for all others
        _meshes[id(self)] = self

    return marking


def _does_not_fit(mesh: Any) -> str:
    ranks, size = mesh._layout.numel(), sys.modules["torch.distributed"].get_world_size()
    if ranks <= size:
        return ""
    return (
        f"{mesh!r} is for {ranks} ranks, but world {_world} has {size}: build it from the world's size, or form no "
        "world that is too small (--nnodes MIN:MAX, --worker_failure replace)"
    )


def _retire(mesh: Any) -> None:
    """Let its use raise an error that says what to do, even if another group has the name of its own by now."""
    if hasattr(mesh, "_dim_group_names"):
        over = f"of {mesh!r}, which was built in world {_world}: that is over, build the mesh again in each world"
        mesh._dim_group_names = [f"{name} {over}" for name in mesh._dim_group_names]
    if hasattr(mesh, "_pg_registry"):
        mesh._pg_registry.clear()


def _propagated_shardings() -> None:
    # torch.distributed.tensor.debug does the same, and takes half a second to import.
    dispatcher = sys.modules["torch.distributed.tensor._api"].DTensor._op_dispatcher
    dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()


def _propagated_shardings_of_cpp() -> None:
    if "torch.distributed.tensor" in sys.modules:
        sys.modules["torch"]._C._clear_DTensor_sharding_propagator_cache()


def _redistributions() -> None:
    redistribute = sys.modules["torch.distributed.tensor._redistribute"]
    redistribute._gen_transform_infos.cache_clear()
    redistribute.clear_redistribute_planner_cache()


def _metadata() -> None:
    propagator = sys.modules["torch.distributed.tensor._sharding_prop"].ShardingPropagator
    propagator._propagate_tensor_meta_cached.cache_clear()


def _costs() -> None:
    sys.modules["torch.distributed.tensor._collective_utils"].MeshTopoInfo.build_from_mesh.cache_clear()


def _random_numbers() -> None:
    # It is synchronized by a collective when it is made, in which the newcomers of a world would be alone.
    random: Any = sys.modules["torch.distributed.tensor._random"]
    random._rng_tracker = None


_CLEARS = (_propagated_shardings, _propagated_shardings_of_cpp, _redistributions, _metadata, _costs, _random_numbers)
