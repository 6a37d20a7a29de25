"""Giving back the memory that an agent needed for its start alone.

Most of it is torch's libraries, of which an agent uses little; what it does use is mapped again, by the kernel, from
the page cache, where the workers have it in use anyway.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_MADV_DONTNEED = 4
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+)(.*)$", re.MULTILINE)
_CHANGED = re.compile(r"^(Anonymous|Swap): +[1-9]", re.MULTILINE)


def give_back_memory() -> None:
    """Give back the pages of files that this process has only read, and the heap's free ones."""
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # another C library than glibc
        libc.malloc_trim(0)
    with suppress(OSError):  # a system that does not tell
        for begin, end in _as_in_their_files(Path("/proc/self/smaps").read_text()):
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)


def _as_in_their_files(smaps: str) -> Iterator[tuple[int, int]]:
    """The mappings of files that cannot be written to, and have not been: what was changed there, even by a relocation
    or by a debugger, would be lost."""
    _, *fields = _MAPPING.split(smaps)
    for begin, end, permissions, inode, _path, numbers in zip(*(fields[i::6] for i in range(6)), strict=True):
        if permissions in ("r-xp", "r--p") and inode != "0" and not _CHANGED.search(numbers):
            yield int(begin, 16), int(end, 16)
