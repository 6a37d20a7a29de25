"""Default groups are held until nothing works in them any more, so that no model is then the last to hold one.

The other groups of a world are kept for as long when it is over (destroy.py).

If a DistributedDataParallel is the last to hold a gloo group, torch 2.13 may wait for ever when the model is freed,
such as when a training function returns, or when the next world's model takes its place: the main thread waits, with
the interpreter's lock, for gloo's threads. One of these may wait for that lock, or for a payload that nobody sends any
more, which a thread that needs the lock is about to tell it (forgotten.py). Whoever holds a group itself frees it
without the lock, and whoever frees one in which nothing works waits for nobody.

A group is not held for much longer than that: if a payload was half done when its connection ended, gloo's loop looks
at that connection again and again, and takes a whole core, until the group is freed.

So gloo's threads are still there when the process ends. A collective is done before its thread has dropped what it
worked on, and a thread that needs the interpreter's lock for that may not come too late (see native.py).
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
from functools import partial
from typing import Any

from softrun.runtime.groups import gloo_waits, native
from softrun.runtime.groups.sockets import is_room_for

MOST_BUSY = 8
"""So many are held, whatever works in them."""
MOST_IDLE = 2
KEPT_S = 5.0
"""How long after the next group was built: the trainer has a new model by then, and freed the old one in no time."""
FREED_S = 10.0
LOOK_S = 0.001

_held: dict[int, Any] = {}  # the newest last
_numbers = itertools.count()
_is_replaced = threading.Event()  # ends the thread that is to free the earlier ones
_frees_earlier: threading.Thread | None = None
_held_by_parents: list[Any] = []  # freeing these would wait for threads that are not here


def hold(group: Any, earlier_loops: set[int]) -> None:
    """Hold a new default group with gloo, and free the earlier ones soon, once none of their threads works."""
    global _is_replaced, _frees_earlier
    earlier = [*_held]
    _held[next(_numbers)] = group
    _is_replaced.set()
    if earlier:
        ends = _is_replaced = threading.Event()
        free = partial(_free_earlier, earlier, earlier_loops, ends)
        _frees_earlier = native.start(free, "softrun-destroy", recall=ends.set)


def make_room() -> None:
    """Before a group is built: hold none if descriptors are few."""
    if _held and not is_room_for(0):
        let_go()


def let_go() -> None:
    """Hold none any more: what the groups' users had made with them is gone. Waits until they are freed."""
    _is_replaced.set()
    if _frees_earlier is not None:
        _frees_earlier.join(FREED_S)
    if _held:
        native.start(partial(_free, [*_held]), "softrun-destroy").join(FREED_S)


def _free_earlier(earlier: list[int], loops: set[int], ends: threading.Event) -> None:
    """Those that are too many as soon as these loops are idle, the others later."""
    _free(earlier[: 1 - MOST_BUSY])
    for numbers, after_s in ((earlier[: 1 - MOST_IDLE], 0.0), (earlier, KEPT_S)):
        if ends.wait(after_s) or not gloo_waits.become_idle(loops, ends):
            return
        _free(numbers)


def _free(numbers: list[int]) -> None:
    """In a thread of its own: it takes gloo 10 ms or more."""
    for number in numbers:
        _held.pop(number, None)


@atexit.register
def _await_last_works() -> None:
    end = time.monotonic() + native.EXIT_S
    while _held and gloo_waits.working() and time.monotonic() < end:
        time.sleep(LOOK_S)


def _begin_in_child() -> None:
    _held_by_parents.extend(_held.values())
    _held.clear()


os.register_at_fork(after_in_child=_begin_in_child)
