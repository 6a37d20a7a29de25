"""The job secret: what every agent of a job reads from its token file, and nobody else knows."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from softrun.agent.errors import UsageError

LEAST_BYTES = 16
MOST_BYTES = 4096


def new_token() -> bytes:
    """Return a new secret, for a job whose agents need no file to share it."""
    return secrets.token_hex(32).encode()


def read_token(path: str | Path) -> bytes:
    """Return the secret in the file, without the white space around it.

    Raises UsageError, in one line that names the path and the remedy, if there is no secret, or if others could know
    it. Never blocks, and never says what is in the file.
    """
    try:
        about = Path(path).stat()  # before it is opened: opening a pipe waits for a writer
    except (OSError, ValueError) as error:
        raise _fault(path, f"cannot be read ({_reason(error)})", "correct the path") from None
    _check_file(path, about)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise _fault(path, f"cannot be read ({_reason(error)})", f"chmod 600 {_shown(path)}") from None
    with os.fdopen(descriptor, "rb") as file:
        _check_file(path, os.fstat(descriptor))  # another file may have come to stand there
        try:
            token = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise _fault(path, f"cannot be read ({_reason(error)})", "correct the path") from None
    if len(token) > MOST_BYTES:
        raise _fault(path, f"has more than {MOST_BYTES} bytes", "write one line of random characters to it")
    token = token.strip()
    if not token:
        raise _fault(path, "is empty", "write one line of random characters to it")
    if len(token) < LEAST_BYTES:
        raise _fault(path, f"has fewer than {LEAST_BYTES} bytes", "write one longer line of random characters to it")
    return token


def _check_file(path: str | Path, about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise _fault(path, "is not a file", "name a file that has the secret in it")
    if about.st_uid not in (os.geteuid(), 0):
        raise _fault(
            path, f"belongs to user {about.st_uid}, who could change it", f"chown {os.geteuid()} {_shown(path)}"
        )
    if about.st_mode & 0o077:
        mode = f"{stat.S_IMODE(about.st_mode):o}"
        raise _fault(path, f"can be read or written by others (its mode is {mode})", f"chmod 600 {_shown(path)}")


def _fault(path: str | Path, fault: str, remedy: str) -> UsageError:
    return UsageError(f"the token_file {_shown(path)} {fault}: {remedy}")


def _shown(path: str | Path) -> str:
    return repr(str(path))


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
