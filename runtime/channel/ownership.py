"""Whose the channel is: one process writes the worker's part of it, and all others that find it only read.

Whatever a worker starts inherits SOFTRUN_CHANNEL, and the process that trains need not be the one that the agent
started: that may be a shell or another launcher, which starts it. So the first process that asks for a world as a
worker claims the channel. A claim ends with its process, stays if that executes another program, and yields to an
ancestor alone: a child that asked before the trainer did is not taken for it any longer.

A claim is one number, the process's id and the time of its start, so it is written in one piece and no later process of
the same id is taken for its owner.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from softrun.runtime.channel.page import OWNER, Page

_PID_BITS = 22  # the kernel's own limit
_GENERATIONS = 1000


class _Process(NamedTuple):
    parent: int
    claim: int


def claim(page: Page) -> bool:
    """Claim the page for this process, which asks as a worker. False: another process has it."""
    own = _look(os.getpid())
    if own is None:
        return True  # nothing can be known here, so nobody is refused
    holder = page.words[OWNER]
    if holder not in (0, own.claim) and is_running(holder) and not _descends(claimant(holder), os.getpid()):
        return False
    page.words[OWNER] = own.claim
    return True


def claimant(claim: int) -> int:
    """The process id in a claim."""
    return claim & ((1 << _PID_BITS) - 1)


def is_running(claim: int) -> bool:
    """Whether the process that made this claim has not ended yet."""
    found = _look(claimant(claim))
    return found is not None and found.claim == claim


def _descends(pid: int, ancestor: int) -> bool:
    for _ in range(_GENERATIONS):
        found = _look(pid)
        if found is None or found.parent == 0:
            return False
        if found.parent == ancestor:
            return True
        pid = found.parent
    return False


def _look(pid: int) -> _Process | None:
    """None if it has ended, or the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        state, parent, start = fields[0], int(fields[1]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
    return None if state in (b"Z", b"X") else _Process(parent, start << _PID_BITS | pid)
