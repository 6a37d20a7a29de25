"""How much memory is left on this node: of the machine, or of the container if that allows less."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")


def memory_left(meminfo: Path = _MEMINFO, cgroups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Return how many bytes a process may still take, as far as the kernel says."""
    found = [_available(meminfo.read_text())]
    with suppress(OSError, StopIteration):
        name = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
        group = cgroups / name.lstrip("/")
        for folder in [group, *group.parents]:
            if folder != cgroups and cgroups not in folder.parents:
                break
            found.extend(_left_in(folder))
    return max(min(found), 0)


def _available(meminfo: str) -> int:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _left_in(folder: Path) -> list[int]:
    with suppress(OSError, ValueError):
        most = int((folder / "memory.max").read_text())  # "max" is no number
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        pages = int(stat.get("inactive_file", 0))  # of files, which the kernel gives back first
        return [most - int((folder / "memory.current").read_text()) + pages]
    return []
