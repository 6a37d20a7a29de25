"""A worker's lifeline: the kernel itself kills the worker when its agent is gone, whatever else was killed with it.

The agent has both ends of a pipe; the worker has a copy of the reading end, without knowing it. However the agent ends,
the kernel then closes the writing end and sends the owner of the reading end a signal: SIGKILL, to the worker's process
group.

A parent-death signal would not do: it is sent when the *thread* that started a process ends, a worker's parent may be
the fork server, without which workers go on, and it does not reach a worker's children. A lifeline does not reach
processes that have left the worker's group, or that close descriptors which they did not open: the reapers end those.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
from contextlib import suppress


class Lifeline:
    """The agent's side of one worker's lifeline."""

    def __init__(self) -> None:
        self.theirs, self._ours = os.pipe()
        self._is_cut = False

    def tie_a_fork(self) -> None:
        """Call this in a process that was forked from the agent, which also has a copy of the writing end."""
        os.close(self._ours)
        tie(self.theirs)

    def cut(self) -> None:
        """Call this when the worker has ended: what it has left running may finish."""
        if self._is_cut:
            return
        self._is_cut = True
        fcntl.fcntl(self.theirs, fcntl.F_SETFL, 0)
        os.close(self.theirs)
        os.close(self._ours)


def tie(theirs: int) -> None:
    """Call this first in the worker, which leads its group, so that it never runs without a lifeline."""
    with suppress(OSError):  # a sandbox does not support such signals
        fcntl.fcntl(theirs, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(theirs, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(theirs, fcntl.F_SETFL, os.O_ASYNC)
    ends = select.poll()
    ends.register(theirs, 0)
    if ends.poll(0):  # the agent is already gone
        os._exit(1)
