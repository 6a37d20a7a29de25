"""The directory in which an agent makes the channels of its workers.

An agent holds a shared lock on its directory as long as it lives; cleaners of temporary directories leave a locked
directory alone, however old it is. An unlocked one was left behind by an agent that was killed with its reapers: the
next agent of that user on that host removes it. The host is in its name, since some network file systems keep locks
to the host.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from softrun.runtime.channel.channel import ChannelError, default_root

_ATTEMPTS = 100
_CONTENT = re.compile(r"worker-\d+-\d+(\.said)?|snapshots(\.started)?")


class ChannelsDirectory:
    """One agent's directory, `path`, and the agent's lock on it."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def make(cls) -> ChannelsDirectory:
        """Make a directory, and remove those that other agents left behind. Raises ChannelError if none can be made."""
        root, prefix = default_root(), f"softrun-{socket.gethostname()}-"
        try:
            _remove_left(root, prefix)
            for _ in range(_ATTEMPTS):
                path = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
                try:
                    lock = _lock(path, fcntl.LOCK_SH)
                except OSError:
                    path.rmdir()
                    raise
                if lock is not None:
                    return cls(path, lock)
        except OSError as error:
            raise ChannelError(
                f"no directory can be made and locked in {root} ({error.strerror}): "
                "set SOFTRUN_CHANNEL_ROOT to a directory of yours on a local file system"
            ) from error
        raise ChannelError(f"{root} keeps no directory that is made there: set SOFTRUN_CHANNEL_ROOT to another one")

    def close(self) -> None:
        """Remove it, unless something is still in it."""
        with suppress(OSError):
            self.path.rmdir()
        os.close(self._lock)


def _lock(path: Path, kind: int) -> int | None:
    """Return a descriptor that locks the directory; None if another process holds the lock or has removed it."""
    with suppress(BlockingIOError, FileNotFoundError), ExitStack() as stack:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            stack.pop_all()
            return descriptor
    return None


def _remove_left(root: Path, prefix: str) -> None:
    for path in sorted(root.glob(f"{prefix}*")):
        with suppress(OSError):  # another user's, or another agent is removing it
            if path.lstat().st_uid != os.geteuid() or (lock := _lock(path, fcntl.LOCK_EX)) is None:
                continue
            if all(_CONTENT.fullmatch(entry.name) for entry in path.iterdir()):
                shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
