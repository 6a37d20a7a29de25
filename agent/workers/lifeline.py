"""A worker's lifeline: the kernel itself kills the worker when its agent is gone, whatever else was killed with it.

The agent has both ends of a pipe, the worker a copy of the end for reading, of which it knows nothing. When the agent
ends, however it ends, the end for writing is closed, and that is an event for which the kernel sends the owner of the
other end a signal: SIGKILL, to the worker's process group.

A parent-death signal would not do: it comes when the *thread* ends that started a process, a worker's parent may be the
fork server, without which workers go on, and it reaches no child of a worker. This does not reach those that have left
the worker's group, or close what they did not open: they are for the reapers.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
from contextlib import suppress


class Lifeline:
    """The agent's side."""

    def __init__(self) -> None:
        self.theirs, self._ours = os.pipe()
        self._is_cut = False

    def tie_a_fork(self) -> None:
        """In a process that was forked from the agent, which has a copy of the end for writing, too."""
        os.close(self._ours)
        tie(self.theirs)

    def cut(self) -> None:
        """The worker has ended. What it has left to finish something may go on."""
        if self._is_cut:
            return
        self._is_cut = True
        fcntl.fcntl(self.theirs, fcntl.F_SETFL, 0)
        os.close(self.theirs)
        os.close(self._ours)


def tie(theirs: int) -> None:
    """Call in the worker itself, which leads its group, before anything else: there is no moment without a lifeline."""
    with suppress(OSError):  # a sandbox that does not know such signals
        fcntl.fcntl(theirs, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(theirs, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(theirs, fcntl.F_SETFL, os.O_ASYNC)
    ends = select.poll()
    ends.register(theirs, 0)
    if ends.poll(0):  # the agent was gone before
        os._exit(1)
