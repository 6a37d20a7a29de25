"""torch's TCPStore, as far as it shows itself: by the text that stands for it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from typing import Any

_SOCKET = re.compile(r"client=TCPClient\(SocketImpl\(fd=(\d+),")


def underlying_store(store: Any) -> Any:
    """The TCPStore below, which knows its port."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def is_hosted_here(store: Any) -> bool:
    """Its port may be wanted again by this process."""
    return "server=TCPServer" in repr(underlying_store(store))


def descriptor_of(store: Any) -> int | None:
    """Of this client's connection; None if this torch does not tell."""
    match = _SOCKET.search(repr(underlying_store(store)))
    return int(match[1]) if match else None


def disconnect(store: Any) -> None:
    """Make every thread that waits for an answer through this client raise, and all later calls. For any thread."""
    descriptor = descriptor_of(store)
    if descriptor is not None:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            connection.shutdown(socket.SHUT_RDWR)
