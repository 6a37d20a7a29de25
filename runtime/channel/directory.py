"""A private directory, which both ends of a channel can rely on, whatever else writes to the same file system.

The directory is opened once, and every file is reached through that descriptor, so nobody can replace the directory
between a check and a use.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from pathlib import Path

MAX_BYTES = 1 << 20  # RFC: "The size of the message between two processes will not be greater than 1 MiB."

BELL = ".said"

_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class ChannelError(RuntimeError):
    """The channel between an agent and its worker cannot be used."""


class BadFileError(ChannelError):
    """A file that its writer cannot have written: foreign, too big, or damaged. Other files may be fine."""


class PrivateDirectory:
    """A directory of this user that nobody else can write to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise ChannelError(
                f"channel directory {path} cannot be opened as a directory ({error.strerror}): "
                "it must be the one that this worker's agent made"
            ) from error
        found = os.fstat(self._fd)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            self.close()
            raise ChannelError(
                f"channel directory {path} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}: "
                f"it must belong to user {os.geteuid()} with mode 700"
            )

    @classmethod
    def create(cls, path: Path) -> PrivateDirectory:
        """Make the directory. Its parent must exist; the directory must not."""
        try:
            path.mkdir(mode=0o700)
        except OSError as error:
            raise ChannelError(
                f"channel directory {path} cannot be made ({error.strerror}): "
                "set SOFTRUN_CHANNEL_ROOT to an empty directory of yours on a local file system"
            ) from error
        return cls(path)

    def close(self) -> None:
        """Close the descriptor; the directory stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self.close()

    def short(self, name: str) -> str:
        """Return a path of that name that is short enough for a socket, while this directory is open here.

        A machine that hides /proc has no such path: there it is the long one.
        """
        opened = f"/proc/self/fd/{self._fd}"
        return f"{opened if Path(opened).is_dir() else self.path}/{name}"

    def names(self) -> list[str]:
        """The names in the directory, sorted."""
        # A new descriptor: with one that another thread or a forked child has, the read position is shared, too.
        try:
            listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._fd)
        except FileNotFoundError:  # somebody has removed it
            return []
        try:
            with os.scandir(listing) as entries:
                return sorted(entry.name for entry in entries)
        finally:
            os.close(listing)

    def holds(self, name: str) -> bool:
        """Whether something of that name exists."""
        try:
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def read(self, name: str) -> bytes | None:
        """The content of a file, None if it does not exist. Raises BadFileError if it is not our own regular file."""
        try:
            # O_NONBLOCK: opening a pipe, if somebody left one there, must not wait for its writer.
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            # A lack of descriptors passes, and the file is fine; a symbolic link or a foreign file stays one.
            kind = ChannelError if error.errno in _PASSING else BadFileError
            raise kind(f"{self.path / name} cannot be read: {error.strerror}") from error
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise BadFileError(f"{self.path / name} is not a regular file of user {os.geteuid()}: remove it")
            if found.st_size > MAX_BYTES:
                raise BadFileError(f"{self.path / name} has {found.st_size} bytes: at most {MAX_BYTES} are read")
            return os.read(fd, MAX_BYTES)
        finally:
            os.close(fd)

    def replace(self, name: str, content: bytes) -> None:
        """Write a file so that a reader sees all of it or nothing. An error leaves the directory unchanged."""
        if len(content) > MAX_BYTES:
            raise ChannelError(
                f"{self.path / name} would have {len(content)} bytes: at most {MAX_BYTES} fit in one message"
            )
        temporary = f".{name}.new"
        try:
            self.discard(temporary)  # left by a writer that was killed here
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=self._fd)
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                # No fsync: a message is useless once the host is down.
                os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            finally:
                os.close(fd)  # it has its name by now; closing it wakes the other end
        except OSError as error:
            with contextlib.suppress(OSError):
                self.discard(temporary)
            raise ChannelError(
                f"{self.path / name} cannot be written ({error.strerror}): "
                "free its file system or set SOFTRUN_CHANNEL_ROOT to a directory on another one"
            ) from error

    def share(self, name: str, size: int) -> mmap.mmap | None:
        """Map a file of `size` bytes into memory, which both ends share. Returns None if it is not such a file, or its
        file system cannot map it."""
        try:
            fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._fd)
        except OSError:
            return None
        try:
            found = os.fstat(fd)
            ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_size == size
            return mmap.mmap(fd, size) if ours else None
        except OSError:
            return None
        finally:
            os.close(fd)

    def ring(self) -> None:
        """Wake the process that watches the directory above this one."""
        try:
            fd = os.open(self.bell, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            try:
                os.utime(fd)  # a watcher without notifications looks at the time of the last change
            finally:
                os.close(fd)  # nothing is written: a full disk would have no room for it
        except OSError as error:
            raise ChannelError(f"{self.bell} cannot be written ({error.strerror}): free its file system") from error

    @property
    def bell(self) -> Path:
        """The file beside the directory that is written to wake the other end."""
        return self.path.with_name(self.path.name + BELL)

    def discard(self, name: str) -> None:
        """Remove a file if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)
