"""torch's own books of its process groups: whether there is a group, and emptying them whatever they hold.

torch enters a group in some ten tables, one after the other, and makes it the default last. A build or a destruction
that is interrupted in between leaves a half-entered group: it is not the default, so torch never destroys it, and it
blocks the next group, which has the same name. Nothing here imports torch.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_C10D = "torch.distributed.distributed_c10d"
_TABLES = (
    "pg_map",
    "pg_names",
    "pg_group_ranks",
    "pg_backend_config",
    "pg_to_tag",
    "tags_to_pg",
    "pg_coalesce_state",
)
_HOOK = "init_process_group.<locals>._distributed_excepthook"

_worked = False


def has_group() -> bool:
    """Whether torch has a default process group; a process that has not imported torch has none."""
    is_initialized = getattr(sys.modules.get("torch.distributed"), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def has_worked() -> bool:
    """Whether one collective has followed another in a group since `forget_work`, which shows that its members work
    together. Any thread may call it."""
    if _worked:
        return True
    for group in list(getattr(_world(), "pg_map", {})):
        with suppress(Exception):  # its backend does not count collectives, or it is being destroyed
            if group._get_sequence_number_for_group() > 1:
                return True
    return False


def remember_work() -> None:
    """Keep the answer of `has_worked`: the groups are about to be destroyed."""
    global _worked
    _worked = has_worked()


def forget_work() -> None:
    """Forget the collectives so far: a new world begins."""
    global _worked
    _worked = False


def are_empty() -> bool:
    """Whether torch's tables hold no group, not even half of one."""
    world = _world()
    return world is None or not (has_group() or any(getattr(world, table, None) for table in _TABLES))


def empty() -> None:
    """Forget all groups, complete or not, and count the next one as the first, as newcomers do.

    torch names groups by a count, and a group's members meet in the store under that name. A group that could not be
    built was counted here but not on peers that never tried: they would wait for each other under different names.
    """
    world = _world()
    if world is None:
        return
    c10d: Any = sys.modules[_C10D]
    for group in {**getattr(world, "pg_names", {}), **getattr(world, "pg_map", {})}:
        with suppress(Exception):  # it may not have got as far as anything that can be shut down
            group.shutdown()
    for table in _TABLES:
        getattr(world, table, {}).clear()
    c10d._update_default_pg(None)
    c10d._unregister_all_process_groups()
    world.group_count = 0


def retire_default_group(group: Any) -> None:
    """If this is the default group, let the next use find that there is none. Any thread may call it."""
    if getattr(_world(), "default_pg", None) is group:
        sys.modules[_C10D]._update_default_pg(None)


def forget_rank() -> None:
    """Take the ranks of earlier worlds from `sys.excepthook`: for each default group torch puts one more there."""
    hook: Callable[..., Any] = sys.excepthook
    while getattr(hook, "__qualname__", "") == _HOOK:
        hook = inspect.getclosurevars(hook).nonlocals["old_hook"]
    sys.excepthook = hook


def destroying_nothing_does(instead: Callable[[], None]) -> None:
    """Have `destroy_process_group()` call `instead` if there is no default group, which torch takes for a bug.

    The soft-restart RFC's loop destroys the group in its `except` clause, even if the exception came from
    `init_process_group()` itself. This changes the function's code, not one of its names: many programs have
    `from torch.distributed import destroy_process_group`. Idempotent.
    """
    destroy = getattr(sys.modules.get(_C10D), "destroy_process_group", None)
    if not isinstance(destroy, types.FunctionType) or destroy.__closure__ or hasattr(destroy, "softrun_instead"):
        return
    torchs = types.FunctionType(destroy.__code__, destroy.__globals__, destroy.__name__, destroy.__defaults__)
    vars(destroy)["softrun_instead"] = functools.partial(_destroy, torchs, instead)
    destroy.__code__ = _destroying.__code__


def _destroying(group: Any = None) -> Any:
    """The code that replaces torch's; it runs with the globals of torch's module."""
    import torch.distributed.distributed_c10d as c10d

    return c10d.destroy_process_group.softrun_instead(group)  # type: ignore[attr-defined]


def _destroy(torchs: Callable[[Any], None], instead: Callable[[], None], group: Any) -> None:
    if group is None and not has_group():
        instead()
    else:
        remember_work()
        torchs(group)


def _world() -> Any:
    return getattr(sys.modules.get(_C10D), "_world", None)
