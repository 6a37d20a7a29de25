"""The files that `--rdzv_conf` names: certificates, keys and secrets. They are read before anything starts."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

from softrun.agent.errors import UsageError

MOST_BYTES = 1 << 20

logger = logging.getLogger("softrun")


def content_of(key: str, name: str) -> bytes:
    """Return what is in the file `name`, which is the value of `key`. Raises UsageError if it is not a file, if it
    cannot be read, or if it is larger than any such file; never waits for a pipe."""
    try:
        found = Path(name).stat()
        if stat.S_ISREG(found.st_mode) and found.st_size <= MOST_BYTES:
            return Path(name).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--rdzv_conf {key}={name} cannot be read: {reason}") from error
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"--rdzv_conf {key}={name} is not a regular file: give the path of one")
    raise UsageError(f"--rdzv_conf {key}={name} has {found.st_size} bytes, which no such file has: correct the path")


def secret_in(key: str, name: str) -> str:
    """Return the text in a file that holds a secret, without the space around it. Raises UsageError if there is none;
    warns if every user of this machine can read it."""
    try:
        secret = content_of(key, name).decode().strip()
    except UnicodeDecodeError as error:
        raise UsageError(f"--rdzv_conf {key}={name} is not text in UTF-8: write the secret alone into it") from error
    if not secret:
        raise UsageError(f"--rdzv_conf {key}={name} is empty: write the secret into it")
    if Path(name).stat().st_mode & stat.S_IROTH:
        logger.warning("--rdzv_conf %s=%s can be read by every user of this machine: chmod 600 it", key, name)
    return secret
