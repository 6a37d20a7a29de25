"""Connections that belong to no group, which no abort may harm."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from local_cluster import PATIENCE_S


@contextlib.contextmanager
def bystander() -> Iterator[None]:
    """Connections of this process's own: one from before, and others that a thread opens all the time."""
    ended = threading.Event()
    broken: list[BaseException] = []

    def open_and_use(listener: socket.socket) -> None:
        opened: list[socket.socket] = []
        try:
            while not ended.wait(0.002) and len(opened) < 200:
                ours = socket.create_connection(listener.getsockname(), timeout=PATIENCE_S)
                theirs, _ = listener.accept()
                opened += [ours, theirs]
            for ours, theirs in zip(opened[::2], opened[1::2], strict=True):
                use(ours, theirs)
        except BaseException as error:
            broken.append(error)
        finally:
            for one in opened:
                one.close()

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        theirs, _ = listener.accept()
        local = socket.socketpair()
        thread = threading.Thread(target=open_and_use, args=(listener,), daemon=True)
        thread.start()
        with theirs, local[0], local[1]:
            yield
            ended.set()
            thread.join(PATIENCE_S)
            use(ours, theirs)
            use(*local)
    assert not broken, broken


def use(ours: socket.socket, theirs: socket.socket) -> None:
    for one, other in ((ours, theirs), (theirs, ours)):
        other.settimeout(PATIENCE_S)
        one.sendall(b"x")
        assert other.recv(1) == b"x"
