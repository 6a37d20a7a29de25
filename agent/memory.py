"""The memory of processes that live long, and of which others want to know at once when they have died.

The kernel closes the sockets of a process that is killed only after it has freed its memory, page by page: with torch
imported that takes 15 ms, and 40 ms beside other work. So an agent gives back what it needed for its start alone, and
gathers the rest in large pages, of which there are 512 times fewer.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GATHER_AFTER_S = 2.0

_MADV_DONTNEED = 4
_MADV_COLLAPSE = 25  # Linux 6.1
_LARGE = 2 << 20
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+)(.*)$", re.MULTILINE)
_CHANGED = re.compile(r"^(Anonymous|Swap): +[1-9]", re.MULTILINE)


def give_back_memory() -> None:
    """Give back the pages of files that this process has only read, and the heap's free ones.

    Most of it is torch's libraries, of which an agent uses little; what it does use is mapped again, by the kernel,
    from the page cache, where the workers have it in use anyway.
    """
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # another C library than glibc
        libc.malloc_trim(0)
    for begin, end in _as_in_their_files(_mappings()):
        _advise(begin, end, _MADV_DONTNEED)


def gather_memory_later() -> None:
    """As `gather_memory`, aside and when the start is over: it takes 40 ms, and more where memory is scarce."""
    timer = threading.Timer(GATHER_AFTER_S, gather_memory)
    timer.name, timer.daemon = "softrun-memory", True
    timer.start()


def gather_memory() -> None:
    """Move this process's own memory to large pages, as far as the kernel has them."""
    for begin, end in _own(_mappings()):
        _advise(begin, end, _MADV_COLLAPSE)


def _advise(begin: int, end: int, advice: int) -> None:
    """An older kernel refuses, and nothing is changed."""
    ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)


def _mappings() -> str:
    with suppress(OSError):  # a system that does not tell
        return Path("/proc/self/smaps").read_text()
    return ""


def _as_in_their_files(smaps: str) -> Iterator[tuple[int, int]]:
    """The mappings of files that cannot be written to, and have not been: what was changed there, even by a relocation
    or by a debugger, would be lost."""
    for begin, end, permissions, inode, _, numbers in _read(smaps):
        if permissions in ("r-xp", "r--p") and inode != "0" and not _CHANGED.search(numbers):
            yield begin, end


def _own(smaps: str) -> Iterator[tuple[int, int]]:
    """The large mappings of no file: the heap, and what Python allocates beside it."""
    for begin, end, permissions, _, name, _ in _read(smaps):
        if permissions == "rw-p" and name in ("", "[heap]") and end - begin >= _LARGE:
            yield begin, end


def _read(smaps: str) -> Iterator[tuple[int, int, str, str, str, str]]:
    """Each mapping: begin, end, permissions, inode, name and numbers."""
    _, *fields = _MAPPING.split(smaps)
    for begin, end, permissions, inode, name, numbers in zip(*(fields[i::6] for i in range(6)), strict=True):
        yield int(begin, 16), int(end, 16), permissions, inode, name.strip(), numbers
