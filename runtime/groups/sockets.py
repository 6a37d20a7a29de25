"""This process's TCP sockets, whatever code opened them: what they connect, and duplicates of them.

The kernel lists descriptors, but between two looks at a descriptor another thread may close it and open something else
under its number. So a socket is identified by its inode, which is unique at any time, and is examined through a
duplicate that was checked to have that inode. A duplicate shares the connection: the connection can be shut down
through it, and stays open as long as the duplicate does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import socket
import stat
import struct
import sys
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import NamedTuple

Address = tuple[str, int]  # the IP address in its shortest form, and the port

_TCP_SYN_SENT = 2
_SO_ATTACH_FILTER = 26
_SO_DETACH_FILTER = 27
_NUMBERS_TRIED = 4096


def is_room_for(wanted: int) -> bool:
    """Whether this process can open so many more descriptors, and still has as many free as are then open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit == resource.RLIM_INFINITY or 2 * (len(descriptors()) + wanted) <= limit


class Ends(NamedTuple):
    """The two addresses of a connection, this process's first."""

    local: Address
    remote: Address | None  # None if the socket listens or is closed


def open_sockets() -> dict[int, int]:
    """The inodes of this process's sockets, by descriptor."""
    found = {}
    for number in descriptors():
        with contextlib.suppress(OSError):  # closed since it was listed
            status = os.fstat(number)
            if stat.S_ISSOCK(status.st_mode):
                found[number] = status.st_ino
    return found


def take_connections(wanted: Callable[[Ends], bool], but: Container[int] = ()) -> dict[int, socket.socket]:
    """Take duplicates, by inode, of the TCP connections that are wanted. Those with an inode in `but` are skipped."""
    return dict(each_connection(wanted, but))


def each_connection(wanted: Callable[[Ends], bool], but: Container[int] = ()) -> Iterator[tuple[int, socket.socket]]:
    """As take_connections, one after the other; the caller closes each."""
    seen: set[int] = set()
    for inode, duplicate in _duplicates(but):
        if inode not in seen and not _listens(duplicate) and wanted(ends_of(duplicate)):
            seen.add(inode)
            yield inode, duplicate
        else:
            duplicate.close()


def descriptors() -> list[int]:
    """The numbers of this process's open descriptors; another thread may have closed some of them since."""
    try:
        with os.scandir("/proc/self/fd") as entries:
            return [int(entry.name) for entry in entries]
    except OSError:  # a sandbox without /proc
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return [number for number in range(min(limit, _NUMBERS_TRIED)) if _is_open(number)]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def listening_sockets(but: Container[int] = ()) -> set[Address]:
    """The addresses where this process listens; sockets with an inode in `but` are skipped."""
    found = set()
    for _, duplicate in _duplicates(but):
        with duplicate:
            if _listens(duplicate):
                found.add(ends_of(duplicate).local)
    return found


# The kernel's packet filter (socket(7), linux/filter.h), which sees a segment from its TCP header on.
_INSTRUCTION = struct.Struct("=HBBI")
_WITHOUT_RESETS = ctypes.create_string_buffer(
    b"".join(
        _INSTRUCTION.pack(*instruction)
        for instruction in (
            (0x30, 0, 0, 13),  # load the byte of the flags
            (0x45, 0, 1, 0x04),  # if RST is among them
            (0x06, 0, 0, 0),  # then drop the segment
            (0x06, 0, 0, 0xFFFFFFFF),  # else keep it whole
        )
    )
)


def ignore_resets(connection: socket.socket) -> None:
    """Let writes succeed after the peer was killed, until the kernel's buffer is full.

    An end of file is still read. If the kernel has no such filter, nothing changes.
    """
    with contextlib.suppress(OSError):
        program = struct.pack("@HP", len(_WITHOUT_RESETS) // _INSTRUCTION.size, ctypes.addressof(_WITHOUT_RESETS))
        connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def heed_resets(connection: socket.socket) -> None:
    """The opposite of ignore_resets."""
    with contextlib.suppress(OSError):  # there is no filter
        connection.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def ends_of(sock: socket.socket) -> Ends:
    """The addresses that `sock` connects."""
    local = in_short(sock.getsockname())
    try:
        return Ends(local, in_short(sock.getpeername()))
    except OSError:
        is_connecting = sock.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 1)[0] == _TCP_SYN_SENT
        return Ends(local, _remote_of(os.fstat(sock.fileno()).st_ino) if is_connecting else None)


def in_short(name: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    """Return an address in its shortest form: an IPv4 address stays itself when written as IPv6."""
    host = name[0].partition("%")[0]
    return host.removeprefix("::ffff:") if "." in host else host, name[1]


def _duplicates(but: Container[int]) -> Iterator[tuple[int, socket.socket]]:
    """Duplicates of every TCP socket; the caller closes them."""
    for fd, inode in open_sockets().items():
        if inode in but:
            continue
        try:
            duplicate = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue  # closed since it was listed
        is_tcp = duplicate.family in (socket.AF_INET, socket.AF_INET6) and duplicate.type == socket.SOCK_STREAM
        # Another thread may have closed the descriptor and opened another socket under its number.
        if is_tcp and os.fstat(duplicate.fileno()).st_ino == inode:
            yield inode, duplicate
        else:
            duplicate.close()


def _listens(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _remote_of(inode: int) -> Address | None:
    """The address that a socket is connecting to: /proc/net tells before getpeername does."""
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] == str(inode):
                    host, _, port = fields[2].partition(":")
                    words = bytes.fromhex(host)  # 32-bit words in this machine's order
                    packed = b"".join(
                        int.from_bytes(words[at : at + 4], "big").to_bytes(4, sys.byteorder)
                        for at in range(0, len(words), 4)
                    )
                    return in_short((socket.inet_ntop(family, packed), int(port, 16)))
    return None
