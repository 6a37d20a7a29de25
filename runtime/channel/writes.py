"""Whether a process gets on with its writing, although its main thread sits in one call.

The kernel counts what a process has written, by all its threads, and knows whether its main thread waits for a device.
It does not count what other processes write for it, nor what it sends on sockets.
"""

from __future__ import annotations

import time
from pathlib import Path

ENOUGH = 1 << 20
"""Bytes; log lines alone do not come to it."""

_COUNTS = ("wchar", "write_bytes")  # passed to write(2); sent to a device, also from mapped memory


class Writes:
    """The writing of this process from now on, until `end`, a time of the monotonic clock."""

    def __init__(self, end: float) -> None:
        self._end = end
        self._seen = _written()

    def go_on(self) -> bool:
        """Whether it has written 1 MiB since the last call that said so, or its main thread waits for a device."""
        if time.monotonic() >= self._end:
            return False
        written = _written()
        if written - self._seen >= ENOUGH:
            self._seen = written
            return True
        return _waits_for_device()


def _written() -> int:
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0  # a kernel that does not count
    counts = dict(line.split(": ") for line in lines)
    return sum(int(counts[name]) for name in _COUNTS)


def _waits_for_device() -> bool:
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[0] == "D"
