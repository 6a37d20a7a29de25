"""What a keeper does when it is asked: one connection of a worker, or of another node's keeper or worker."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from softrun.agent.snapshots.held_images import Buffer, HeldImages, NoRoomError
from softrun.runtime.snapshots.images import Address, Image, Listing
from softrun.runtime.snapshots.keeper import SnapshotError, reach
from softrun.runtime.snapshots.wire import GREETING_S, KEY_BYTES, TIMEOUT_S, receive, receive_into, send, welcome

MOST_KEYS = 16

logger = logging.getLogger("softrun")


class Requests:
    """Answers requests. `address` is where other nodes reach this keeper."""

    def __init__(self, images: HeldImages, address: Address) -> None:
        self._images = images
        self._address = address
        self._warned: set[Address] = set()
        self._keys: list[bytes] = []  # what the last worlds have agreed on
        self._by_workers: dict[str, Callable[..., dict[str, Any]]] = {
            "address": lambda: {"address": self._address},
            "trust": self._trust,
            "list": lambda: {"listing": Listing(address=self._address, images=self._images.sealed()).model_dump()},
            "seal": self._seal,
            "state": lambda image: {"safe": self._images.is_safe(Image.model_validate(image))},
            "forget": self._forget,
            "about": self._about,
        }
        self._by_peers = {"about": self._about}

    def serve_worker(self, sock: socket.socket) -> None:
        """Serve a worker of this node until it goes."""
        self._serve(sock, self._by_workers, {"room": self._make_room, "reserve": self._reserve, "read": self._read})

    def serve_peer(self, sock: socket.socket) -> None:
        """Serve whoever knows a key, until it goes."""
        with suppress(OSError), sock:
            sock.settimeout(GREETING_S)
            welcome(sock, list(self._keys))
            sock.settimeout(TIMEOUT_S)
            self._serve(sock, self._by_peers, {"read": self._read, "put": self._put})

    def _serve(
        self,
        sock: socket.socket,
        asked: dict[str, Callable[..., dict[str, Any]]],
        with_bytes: dict[str, Callable[..., None]],
    ) -> None:
        with suppress(OSError), sock:
            while True:
                request = receive(sock)
                do = request.pop("do", "")
                try:
                    if do in with_bytes:
                        with_bytes[do](sock, **request)
                    else:
                        send(sock, asked[do](**request))
                except NoRoomError as error:
                    send(sock, {"refused": str(error)})
                except KeyError:
                    send(sock, {"refused": "that snapshot is not here any more, or is damaged"})
                except (TypeError, ValueError) as error:
                    send(sock, {"refused": f"not a request: {error}".splitlines()[0]})

    # --- of this node's workers

    def _trust(self, key: str) -> dict[str, Any]:
        value = bytes.fromhex(key)
        if len(value) != KEY_BYTES:
            raise ValueError("a key has another length")
        if value not in self._keys:
            self._keys = [*self._keys[-MOST_KEYS + 1 :], value]
        return {}

    def _make_room(self, sock: socket.socket, owner: str, size: int, copies: bool, mapped: list[int]) -> None:
        self._send_buffers(sock, self._images.make_room(owner, size, copies), mapped)

    def _reserve(self, sock: socket.socket, owner: str, image: Any, size: int, mapped: list[int]) -> None:
        self._send_buffers(sock, [self._images.reserve(Image.model_validate(image), size, owner)], mapped)

    def _send_buffers(self, sock: socket.socket, buffers: list[Buffer], mapped: list[int]) -> None:
        """Tell which they are, with the files of those that the worker has not mapped, and which ones still exist."""
        new = [buffer for buffer in buffers if buffer.number not in mapped]
        answer = {
            "buffers": [buffer.number for buffer in buffers],
            "new": {buffer.number: buffer.capacity for buffer in new},
            "existing": self._images.buffers,
        }
        send(sock, answer, [buffer.descriptor for buffer in new])

    def _seal(self, image: Any, about: dict[str, Any], copy_to: list[Any] | None, key: str) -> dict[str, Any]:
        to = None if copy_to is None else (str(copy_to[0]), int(copy_to[1]))
        arguments = (Image.model_validate(image), about, to, bytes.fromhex(key))
        threading.Thread(target=self._finish, args=arguments, daemon=True).start()
        return {}

    def _finish(self, image: Image, about: dict[str, Any], to: Address | None, key: bytes) -> None:
        """Seal an image, and send a copy to the neighbour."""
        is_safe = False
        try:
            self._images.seal(image, about)
            if to is not None:
                self._copy(image, to, key)
            is_safe = True
        except KeyError:
            return  # dropped meanwhile
        except (OSError, SnapshotError) as error:
            if to is not None and to not in self._warned:
                self._warned.add(to)
                logger.warning("the snapshot of step %d has no copy at %s:%d: %s", image.commits, *to, error)
        self._images.set_safe(image, is_safe)

    def _copy(self, image: Image, to: Address, key: bytes) -> None:
        neighbour = reach(to, key)
        try:
            with self._images.using(image) as held:
                neighbour.put(image, held.about, held.content, held.checksum)
        finally:
            neighbour.close()

    def _forget(self, state: str, whole: list[int] | None, since: list[int]) -> dict[str, Any]:
        self._images.forget(state, whole, since)
        return {}

    # --- of anybody

    def _about(self, image: Any) -> dict[str, Any]:
        return {"about": self._images.check(Image.model_validate(image)).about}

    def _read(self, sock: socket.socket, image: Any, start: int, stop: int) -> None:
        with self._images.using(Image.model_validate(image)) as held:
            if not (held.is_sealed and 0 <= start <= stop <= held.size):
                raise ValueError(f"no bytes {start} to {stop} in an image of {held.size}")
            send(sock, {})
            sock.sendall(held.content[start:stop])

    def _put(self, sock: socket.socket, image: Any, about: dict[str, Any], size: int, checksum: int) -> None:
        """Take a copy of a neighbour's image."""
        name = Image.model_validate(image)
        buffer = self._images.reserve(name, size)
        send(sock, {})
        try:
            with self._images.using(name):
                receive_into(sock, memoryview(buffer.memory)[:size])
            self._images.seal(name, about, checksum)
        except BaseException:
            self._images.drop(name)
            raise
        send(sock, {})
