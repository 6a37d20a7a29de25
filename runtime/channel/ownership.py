"""Which process owns a channel: only that one writes the worker's part, and the others read.

Whatever a worker starts inherits SOFTRUN_CHANNEL, and the process that trains may not be the one that the agent
started: that may be a shell or another launcher. So the first process that asks for a world claims the channel. A claim
ends with its process, survives `exec`, and yields only to an ancestor: if a child asked before the trainer, the trainer
still gets the channel.

A claim is one number, made of the process's id and its start time. So it is written in one piece, and a later process
with the same id is not mistaken for the owner.
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
    """Claim the page for this process; returns False if another process has it."""
    own = _look(os.getpid())
    if own is None:
        return True  # the system does not tell, so nobody is refused
    holder = page.words[OWNER]
    if holder not in (0, own.claim) and is_running(holder) and not _descends(claimant(holder), os.getpid()):
        return False
    page.words[OWNER] = own.claim
    return True


def claimant(claim: int) -> int:
    """The process id in a claim."""
    return claim & ((1 << _PID_BITS) - 1)


def is_running(claim: int) -> bool:
    """Whether the process that made this claim still runs."""
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
    """The process's parent and start time; None if it has ended or the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        state, parent, start = fields[0], int(fields[1]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
    return None if state in (b"Z", b"X") else _Process(parent, start << _PID_BITS | pid)
