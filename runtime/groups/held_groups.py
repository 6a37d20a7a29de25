"""The last default groups are held, so that no model is the last to hold one.

If a DistributedDataParallel is the last to hold a gloo group, torch 2.13 may wait for ever when the model is freed,
such as when a training function returns: the main thread waits, with the interpreter's lock, for gloo's threads, and
one of these waits for that lock. Whoever holds a group itself frees it without the lock.

So gloo's threads are still there when the process ends. A collective is done before its thread has dropped what it
worked on, and a thread that needs the interpreter's lock for that may not come too late (see native.py).
"""

from __future__ import annotations

import atexit
import os
import time
from collections import deque
from threading import Thread
from typing import Any

from softrun.runtime.groups import gloo_waits, native
from softrun.runtime.groups.sockets import is_room_for

MOST_HELD = 2
FREED_S = 10.0
LOOK_S = 0.001

_held: deque[Any] = deque()
_held_by_parents: list[Any] = []  # freeing these would wait for threads that are not here


def hold(group: Any) -> None:
    """Hold a new default group with gloo, until two more are built or `let_go` is called."""
    _held.append(group)
    if len(_held) > MOST_HELD:
        _free([_held.popleft()])


def make_room() -> None:
    """Before a group is built: hold none if descriptors are few."""
    if _held and not is_room_for(0):
        let_go()


def let_go() -> None:
    """Hold none any more: what the groups' users had made with them is gone. Waits until they are freed."""
    groups = [*_held]
    _held.clear()
    if groups:
        _free(groups).join(FREED_S)


def _free(groups: list[Any]) -> Thread:
    """In a thread: it takes gloo 10 ms or more."""
    return native.start(groups.clear, "softrun-destroy")


@atexit.register
def _await_last_works() -> None:
    end = time.monotonic() + native.EXIT_S
    while _held and gloo_waits.working() and time.monotonic() < end:
        time.sleep(LOOK_S)


def _begin_in_child() -> None:
    _held_by_parents.extend(_held)
    _held.clear()


os.register_at_fork(after_in_child=_begin_in_child)
