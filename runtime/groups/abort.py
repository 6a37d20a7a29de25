"""Getting a thread of this process out of a call that no peer will ever end, whatever the backend.

Every group that torch has registered is aborted: the default group, sub-groups, those of device meshes, and any that is
being built. gloo's are aborted through their connections (softrun.runtime.groups.gloo), other backends' by their own
`abort`. torch's registries are not touched, so another thread may use or destroy a group at the same moment.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from softrun.runtime.groups import native
from softrun.runtime.groups.group_registry import cut_groups, registered_groups, track_groups
from softrun.runtime.groups.leftovers.checkpoint_process import kill_checkpoint_process

__all__ = [
    "Abort",
    "AbortProcessGroups",
    "AbortTransformerEngine",
    "abort_all",
    "abort_groups",
    "add_abort",
    "backends_but_gloo",
    "track_groups",
]

_log = logging.getLogger("softrun.runtime")


class Abort(ABC):
    """Makes a thread raise that waits in a call that may never end."""

    @abstractmethod
    def __call__(self, state: Any = None) -> Any:
        """Any thread may call this; it must not wait. `state` is the Wrapper's State, or None outside one."""


class AbortProcessGroups(Abort):
    """Aborts all process groups of this process, whatever code built them and whatever their backends."""

    def __call__(self, state: Any = None) -> Any:
        kill_checkpoint_process()  # it is a rank of a group, too
        abort_groups()
        return state


class AbortTransformerEngine(Abort):
    """Resets what transformer_engine keeps for a world, if the trainer has imported it: user buffers, FP8's state."""

    def __call__(self, state: Any = None) -> Any:
        fp8 = sys.modules.get("transformer_engine.pytorch.fp8")
        reset = getattr(getattr(fp8, "FP8GlobalStateManager", None), "reset", None)
        destroy = getattr(sys.modules.get("transformer_engine.pytorch.module.base"), "destroy_ub", None)
        for free in (destroy, reset):
            if free is not None:
                free()
        return state


_added: list[functools.partial[Any]] = []


def add_abort(abort: Callable[[Any], Any]) -> Callable[[], None]:
    """Also call `abort(state)` when this process must get out of a call; returns a function that ends this.

    It is for whatever torch's registered groups do not cover. softrun calls it in its own thread; it must not wait.
    """
    added = functools.partial(abort)  # an identity of its own: the same function may be added twice
    _added.append(added)

    def remove() -> None:
        with suppress(ValueError):
            _added.remove(added)

    return remove


def abort_all(state: Any = None, abort_first: Callable[[Any], Any] | None = AbortProcessGroups()) -> None:  # noqa: B008
    """Abort the process groups, then call what was added, the last first. A failure does not stop the others."""
    for abort in (abort_first, *reversed(_added)):
        if abort is None:
            continue
        try:
            abort(state)
        except Exception:
            _log.exception("%r failed", getattr(abort, "func", abort))


def abort_groups() -> list[threading.Thread]:
    """Make every thread that waits in one of torch's groups raise. Any thread may call it; returns threads to join."""
    threads = cut_groups()
    for backend in backends_but_gloo():
        threads.extend(_abort_in_thread(backend))
    return threads


def backends_but_gloo() -> Iterator[Any]:
    """The backends of this process's groups, such as NCCL's, which have an `abort` of their own."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    for group in registered_groups():
        if type(group) is not c10d.ProcessGroup:
            yield group  # a third party's group, which is its own backend
            continue
        for device in group._device_types:
            backend = group._get_backend(device)
            backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
            if not isinstance(backend, getattr(c10d, "ProcessGroupGloo", ())):
                yield backend


_aborting: dict[int, Any] = {}  # by id, the backends whose abort has not returned
_lock = threading.Lock()


def _abort_in_thread(backend: Any) -> list[threading.Thread]:
    """Each in its own thread: NCCL's abort of one communicator may wait for that of another."""
    with _lock:
        if id(backend) in _aborting:
            return []
        _aborting[id(backend)] = backend
    return [native.start(functools.partial(_abort, backend), "softrun-abort-backend")]


def _abort(backend: Any) -> None:
    try:
        backend.abort()
    except Exception as error:
        if "does not support abort" in str(error):
            _log.debug("%r cannot be aborted", backend)
        else:
            _log.exception("%r could not be aborted", backend)
    finally:
        with _lock:
            _aborting.pop(id(backend), None)


def _begin_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _aborting.clear()


os.register_at_fork(after_in_child=_begin_in_child)
