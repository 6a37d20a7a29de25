"""torch's TCPStore, as far as its text representation describes it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from typing import Any

_SOCKET = re.compile(r"client=TCPClient\(SocketImpl\(fd=(\d+),")


def underlying_store(store: Any) -> Any:
    """The TCPStore below wrappers such as PrefixStore; it knows its port."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def is_hosted_here(store: Any) -> bool:
    """Whether this process hosts the store, and so may need its port again."""
    return "server=TCPServer" in repr(underlying_store(store))


def descriptor_of(store: Any) -> int | None:
    """The descriptor of this client's connection; None if this torch does not show it."""
    match = _SOCKET.search(repr(underlying_store(store)))
    return int(match[1]) if match else None


def disconnect(store: Any) -> None:
    """Make every waiting and every later call through this client raise. Any thread may call it."""
    descriptor = descriptor_of(store)
    if descriptor is not None:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            connection.shutdown(socket.SHUT_RDWR)
