"""Destroying gloo's groups in the background.

Each takes 10 ms or more: gloo waits for its thread, which checks every 10 ms whether to end. So the groups of a world
that is over are kept for a while and destroyed in a thread, including those that a trainer's own variables hold until
it has built new ones. They are kept until nothing works in them: a model may hold one for longer (held_groups.py).
"""

from __future__ import annotations

import os
import threading
from typing import Any

from softrun.runtime.groups import gloo_waits, native
from softrun.runtime.groups.group_registry import gloo_devices, registered_groups
from softrun.runtime.groups.sockets import is_room_for
from softrun.runtime.groups.stores import is_hosted_here

KEEP_S = 5.0
DESTROY_S = 10.0


class _Kept:
    """The groups of one world."""

    def __init__(self, groups: list[Any]) -> None:
        self._groups = groups
        self._loops = gloo_waits.run_loops()
        self._due, self._is_recalled = threading.Event(), threading.Event()
        self._thread = native.start(self._destroy_when_due, "softrun-destroy", recall=self._recall)

    @property
    def are_there(self) -> bool:
        return self._thread.is_alive()

    def destroy(self) -> None:
        self._due.set()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _recall(self) -> None:
        self._is_recalled.set()
        self._due.set()

    def _destroy_when_due(self) -> None:
        self._due.wait(KEEP_S)
        gloo_waits.become_idle(self._loops, self._is_recalled)
        self._groups.clear()


_kept: list[_Kept] = []
_kept_by_parents: list[_Kept] = []  # their destruction would wait for threads that are not here


def destroy_aside() -> None:
    """Keep the groups that torch is about to drop, and destroy them soon. Never imports torch."""
    groups = [group for group, store in registered_groups().items() if _is_gloo(group) and not is_hosted_here(store)]
    if not is_room_for(0):  # there must be room for their descriptors and for those of the next groups
        groups = []
    for earlier in _kept:
        earlier.destroy()
    _kept[:] = [earlier for earlier in _kept if earlier.are_there]
    if groups:
        _kept.append(_Kept(groups))


def destroy_kept() -> None:
    """Destroy at once what is kept, and wait until that is done."""
    for kept in _kept:
        kept.destroy()
    for kept in _kept:
        kept.join(DESTROY_S)
    _kept[:] = [kept for kept in _kept if kept.are_there]


def _is_gloo(group: Any) -> bool:
    """Whether it has only gloo: the next group may need another backend's memory."""
    devices = gloo_devices(group)
    return bool(devices) and len(devices) == len(group._device_types)


def _begin_in_child() -> None:
    _kept_by_parents.extend(_kept)
    _kept.clear()


os.register_at_fork(after_in_child=_begin_in_child)
