"""Secrets that come by the environment: only the agent has them, not the workers and not its helpers."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from softrun.agent.errors import UsageError
from softrun.agent.store.settings import PASSWORD_VARIABLE, TOKEN_VARIABLE

_taken: dict[str, str] = {}


def take_secrets() -> None:
    """Take the secrets out of the environment, which every process inherits. Call it before the first is started,
    whether they are of use or not. If there are new ones, a later call takes those."""
    for name in (PASSWORD_VARIABLE, TOKEN_VARIABLE):
        value = os.environ.pop(name, None)
        if value is not None:
            _taken[name] = value
            _wipe(name)


def secret_of(name: str) -> str | None:
    """Return what this variable was, when it was taken last; None if it was never set."""
    take_secrets()
    return _taken.get(name)


def token_path(given: str | None) -> str | None:
    """Return where the job's secret is: the file that was `given`, or else that of the environment; None: nowhere.

    Raises UsageError if it is a file without a name, which is what a variable that a script has forgotten to set looks
    like: the job would be open to everybody.
    """
    found = secret_of(TOKEN_VARIABLE)  # which takes it, even if it is of no use
    path = given if given is not None else found
    if path is not None and not path.strip():
        name = "token_file in --rdzv_conf" if given is not None else TOKEN_VARIABLE
        raise UsageError(f"{name} is empty: name the file of the job's secret there, or leave it out")
    return path


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
