"""torch's TCPStore: connecting to one, and what its text representation tells of it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any

from softrun.runtime.groups import native

ATTEMPT = timedelta(seconds=2)
"""torch's client takes up to three times as long to say that nobody answers."""
LOOK_S = 0.01
"""How often somebody who waits for a connection looks whether it is still wanted."""

_SOCKET = re.compile(r"client=TCPClient\(SocketImpl\(fd=(\d+),")


_thread = threading.local()


def own_store(**where: Any) -> Any:
    """Return a TCPStore of softrun's own. It belongs to no world, so the end of a world does not end its making."""
    import torch.distributed as dist

    _thread.makes_own_store = True
    try:
        return dist.TCPStore(**where)  # type: ignore[attr-defined]  # torch's stubs hide it
    finally:
        _thread.makes_own_store = False


def makes_own_store() -> bool:
    """Whether this thread is in `own_store`."""
    return getattr(_thread, "makes_own_store", False)


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


def connect(create: Callable[[timedelta], Any], timeout: timedelta, check: Callable[[], None]) -> Any:
    """Return the client that `create` makes; it is told how long one attempt to connect may take.

    Nothing ends an attempt of torch's client, so another thread makes them, until the timeout. `check` is called all
    the while: if it raises, nobody waits any longer, and the thread ends with its attempt.
    """
    client: Future[Any] = Future()
    given_up = threading.Event()
    deadline = time.monotonic() + timeout.total_seconds()

    def attempts() -> None:
        while not given_up.is_set():
            try:
                client.set_result(create(min(timeout, ATTEMPT)))
                return
            except Exception as error:
                nobody_answers = isinstance(error, RuntimeError)
                if not nobody_answers or time.monotonic() >= deadline:
                    client.set_exception(error)
                    return

    check()
    thread = native.start(attempts, "softrun-connects", recall=given_up.set)
    try:
        while not client.done():
            wait([client], LOOK_S)
            check()
            if not client.done() and not thread.is_alive():
                raise ConnectionError("this process ends, and connects to nothing any more")
    finally:
        given_up.set()
    return client.result()
