"""The keeper of a node's snapshots, as a worker sees it: a process beside the agent, which outlives the workers."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from softrun.runtime.snapshots.images import Address, Image, Listing
from softrun.runtime.snapshots.wire import (
    GREETING_S,
    LOCAL_TIMEOUT_S,
    TIMEOUT_S,
    VARIABLE,
    meet,
    receive,
    receive_into,
    receive_with_files,
    send,
)

MOST_BUFFERS = 2
STARTED = ".started"
"""Beside the keeper's socket while there is a keeper, so that nobody starts one by asking."""


class SnapshotError(RuntimeError):
    """A snapshot cannot be taken, or cannot be read: the text says why, and what to do."""


class KeeperClient:
    """One connection to a keeper. Every method raises OSError, and SnapshotError if the keeper refuses."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def close(self) -> None:
        """End the connection."""
        self._sock.close()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Ask for something; returns the answer."""
        send(self._sock, {"do": do, **arguments})
        return checked(receive(self._sock))

    def about(self, image: Image) -> dict[str, Any]:
        """Return what its owner has said of it, once the keeper has found its bytes to be as they were."""
        return dict(self.ask("about", image=image.model_dump())["about"])

    def put(self, image: Image, about: dict[str, Any], content: memoryview, checksum: int) -> None:
        """Have it keep a copy of an image."""
        self.ask("put", image=image.model_dump(), about=about, size=len(content), checksum=checksum)
        self._sock.sendall(content)
        checked(receive(self._sock))

    def read(self, image: Image, start: int, room: memoryview) -> None:
        """Fill `room` with the bytes of an image from `start`."""
        self.ask("read", image=image.model_dump(), start=start, stop=start + len(room))
        receive_into(self._sock, room)


class LocalKeeper(KeeperClient):
    """The keeper of this worker's node. It maps the memory in which the images are written."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._mapped: dict[int, mmap.mmap] = {}

    @classmethod
    def find(cls, *, start: bool) -> LocalKeeper | None:
        """Connect to it; with `start`, start it if it does not run. None if there is none. Raises OSError."""
        path = os.environ.get(VARIABLE)
        if path is None or not (start or Path(path + STARTED).exists()):
            return None
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(LOCAL_TIMEOUT_S)
            sock.connect(path)
        except OSError:
            sock.close()
            raise
        return cls(sock)

    def close(self) -> None:
        """End the connection. What is being copied goes on."""
        super().close()
        for memory in self._mapped.values():
            with suppress(BufferError):  # tensors still point into it
                memory.close()

    def address(self) -> Address:
        """Where other nodes reach this keeper."""
        host, port = self.ask("address")["address"]
        return str(host), int(port)

    def trust(self, key: bytes) -> None:
        """Let who knows this key in."""
        self.ask("trust", key=key.hex())

    def listing(self) -> Listing:
        """What it holds."""
        return Listing.model_validate(self.ask("list")["listing"])

    def make_room(self, owner: str, size: int, *, copies: bool) -> None:
        """Make room for two images of a worker, and, with `copies`, find out whether two more would fit."""
        self._map("room", owner=owner, size=size, copies=copies)

    def reserve(self, owner: str, image: Image, size: int) -> mmap.mmap:
        """Return memory for an image."""
        (buffer,) = self._map("reserve", owner=owner, image=image.model_dump(), size=size)
        return self._mapped[buffer]

    def seal(self, image: Image, about: dict[str, Any], copy_to: Address | None, key: bytes) -> None:
        """An image is complete: have it checked and copied."""
        self.ask("seal", image=image.model_dump(), about=about, copy_to=copy_to, key=key.hex())

    def _map(self, do: str, **arguments: Any) -> list[int]:
        """Ask for buffers, and map them."""
        send(self._sock, {"do": do, **arguments, "mapped": list(self._mapped)})
        answer, descriptors = receive_with_files(self._sock, MOST_BUFFERS)
        try:
            for (number, capacity), descriptor in zip(checked(answer)["new"].items(), descriptors, strict=True):
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
                self._mapped[int(number)] = mmap.mmap(descriptor, int(capacity), flags=flags)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        for gone in set(self._mapped) - set(answer["existing"]):
            with suppress(BufferError):  # tensors still point into it
                self._mapped.pop(gone).close()
        return list(answer["buffers"])

    def is_safe(self, image: Image) -> bool | None:
        """Whether an image, and its copy, are there; None while they are being made."""
        answer = self.ask("state", image=image.model_dump())["safe"]
        return None if answer is None else bool(answer)

    def forget(self, state: str, whole: Sequence[int] | None, since: Sequence[int]) -> None:
        """Drop the images of a State but those of the snapshot `whole`, (commits, round), and of `since` and later."""
        self.ask("forget", state=state, whole=whole, since=since)


def reach(address: Address, key: bytes) -> KeeperClient:
    """Connect to another node's keeper. Raises OSError."""
    sock = socket.create_connection(address, GREETING_S)
    try:
        meet(sock, key)
        sock.settimeout(TIMEOUT_S)
    except OSError:
        sock.close()
        raise
    return KeeperClient(sock)


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    """Raises SnapshotError if the answer is a refusal."""
    if "refused" in answer:
        raise SnapshotError(str(answer["refused"]))
    return answer
