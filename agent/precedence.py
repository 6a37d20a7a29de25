"""Who is served first by the processors: an agent before the workers, where the system allows it (root, CAP_SYS_NICE).

An agent works for some milliseconds when something has happened, and all workers wait for that; they, and whatever a
node that was killed takes to be cleared away, keep the processors busy meanwhile. Nice values are threads' own, and
are inherited by the threads and the processes that a thread starts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

AHEAD = 10
"""By which an agent's nice value is lower than what it was started with."""

_thread = threading.local()


@contextmanager
def come_first() -> Iterator[None]:
    """For this thread, and for those that it starts in the block."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, own - AHEAD)
    _thread.own = own
    try:
        yield
    finally:
        del _thread.own
        os.setpriority(os.PRIO_PROCESS, 0, own)


@contextmanager
def stand_in_line() -> Iterator[None]:
    """For the time of the block as before `come_first`: for starting a process, which is to have no precedence."""
    first = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, getattr(_thread, "own", first))
    try:
        yield
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, first)
