"""Secrets that come by the environment: only the agent has them, not the workers and not its helpers."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from softrun.agent.store.settings import PASSWORD_VARIABLE, TOKEN_VARIABLE

_taken: dict[str, str] = {}


def take_secrets() -> None:
    """Take the secrets out of the environment, which every process inherits. Call it before the first is started,
    whether they are of use or not. If there are new ones, a later call takes those."""
    for name in (PASSWORD_VARIABLE, TOKEN_VARIABLE):
        value = os.environ.pop(name, None)
        if value:
            _taken[name] = value
            _wipe(name)


def secret_of(name: str) -> str | None:
    """Return what this variable was, when it was taken last; None if it was never set."""
    take_secrets()
    return _taken.get(name)


def _wipe(name: str) -> None:
    """Overwrite the variable where this process was given it: that is what /proc/<pid>/environ shows to each process
    of the same user. A sandbox may not say where that is."""
    with suppress(OSError, ValueError, IndexError):
        begin = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[47])
        offset = 0
        for entry in Path("/proc/self/environ").read_bytes().split(b"\0"):
            if begin and entry.startswith(os.fsencode(name) + b"="):
                ctypes.memset(begin + offset, ord("x"), len(entry))
            offset += len(entry) + 1
