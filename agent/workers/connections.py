"""Whether a worker is connected to its worker store, seen from outside: a worker that never asks tells nothing."""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

_ESTABLISHED = "01"


def is_connected(session: int, port: int, but: AbstractSet[str] = frozenset()) -> bool:
    """Whether a process of this session has a TCP connection to that port, on any host. False if /proc does not say.

    A worker keeps the connection as long as it has the group whose store that is. `but`: sockets that do not count,
    because it was forked from a process that had them.
    """
    with suppress(OSError):
        inodes = _connections_to(port) - but
        return bool(inodes) and any(inodes & sockets_of(pid) for pid in _members(session))
    return False


def _connections_to(port: int) -> set[str]:
    """The inodes of this host's sockets that are connected to that port."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _ESTABLISHED and int(fields[2].rpartition(":")[2], 16) == port:
                    inodes.add(fields[9])
    return inodes


def sockets_of(pid: int) -> set[str]:
    """The inodes of a process's sockets; none if it has ended."""
    found = set()
    with suppress(OSError):  # the process has ended
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - a pathlib.Path would follow the links
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115 - likewise
                if target.startswith("socket:["):
                    found.add(target[len("socket:[") : -1])
    return found


def _members(session: int) -> list[int]:
    members = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with suppress(OSError):
                if os.getsid(int(name)) == session:
                    members.append(int(name))
    return members
