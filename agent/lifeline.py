"""A worker's lifeline: the kernel itself kills the worker when its agent is gone, whoever else was killed with it.

The agent has both ends of a pipe, the worker a copy of the end for reading, of which it knows nothing. When the agent
ends, however it ends, the end for writing is closed, and that is an event for which the kernel sends the owner of the
other end a signal: SIGKILL, to the worker's process group.

A parent-death signal would not do: it comes when the *thread* ends that started a process, a worker's parent may be the
template, without which workers go on, and it reaches no child of a worker. This does not reach those that have left
the worker's group, or close what they did not open: they are for the wardens.
"""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import suppress


class Lifeline:
    def __init__(self) -> None:
        self.theirs, self._ours = os.pipe()

    def tie(self, pid: int) -> None:
        """To be called when the worker has been started with `theirs`. It leads a group, or is about to."""
        with suppress(OSError):  # it has ended, or this is a sandbox that does not know such signals
            fcntl.fcntl(self.theirs, fcntl.F_SETOWN, -pid)
            fcntl.fcntl(self.theirs, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(self.theirs, fcntl.F_SETFL, os.O_ASYNC)

    def cut(self) -> None:
        """The worker has ended. What it has left to finish something may go on."""
        fcntl.fcntl(self.theirs, fcntl.F_SETFL, 0)
        os.close(self.theirs)
        os.close(self._ours)
