"""Destroying gloo's groups aside.

Each takes some 10 ms and more: gloo's thread looks every 10 ms whether it is to end, and is waited for. So the groups
of a world that is over are kept for a while and destroyed in a thread, together with those to which a trainer's own
variables refer until it has built others in their place.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from softrun.runtime.groups import native
from softrun.runtime.groups.group_registry import gloo_devices, registered_groups
from softrun.runtime.groups.sockets import is_room_for
from softrun.runtime.groups.stores import is_hosted_here

KEEP_S = 5.0


class _Kept:
    """The groups of one world."""

    def __init__(self, groups: list[Any]) -> None:
        self._groups = groups
        self._due = threading.Event()
        self._thread = native.start(self._destroy_when_due, "softrun-destroy", recall=self._due.set)

    @property
    def are_there(self) -> bool:
        return self._thread.is_alive()

    def destroy(self) -> None:
        self._due.set()

    def _destroy_when_due(self) -> None:
        self._due.wait(KEEP_S)
        self._groups.clear()


_kept: list[_Kept] = []
_kept_by_parents: list[_Kept] = []  # they have threads that are not here, for which their destruction would wait


def destroy_aside() -> None:
    """Keep the groups that are about to be destroyed; destroy them soon. Never imports torch."""
    groups = [group for group, store in registered_groups().items() if _is_gloo(group) and not is_hosted_here(store)]
    if not is_room_for(0):  # beside their descriptors there must be those of the groups that follow
        groups = []
    for earlier in _kept:
        earlier.destroy()
    _kept[:] = [earlier for earlier in _kept if earlier.are_there]
    if groups:
        _kept.append(_Kept(groups))


def _is_gloo(group: Any) -> bool:
    """And nothing else: another backend's memory may be needed by the next group."""
    devices = gloo_devices(group)
    return bool(devices) and len(devices) == len(group._device_types)


def _begin_in_child() -> None:
    _kept_by_parents.extend(_kept)
    _kept.clear()


os.register_at_fork(after_in_child=_begin_in_child)
