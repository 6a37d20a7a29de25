"""What is said to a keeper of snapshots. A message is JSON with its length before it; an image's bytes follow it.

A worker speaks to its node's keeper over a local socket, in a directory that only this user can enter. Over TCP both
ends first prove that they know a key, which the ranks of a world have agreed on in their group:

    client → {"nonce"}      keeper → {"nonce"}      client → {"proof"}      keeper → {"proof"}

A nonce is new random bytes, and a proof the HMAC-SHA256, under the key, of the sender's part and both nonces. What
follows is not encrypted, as the tensors are not that the ranks of a world send each other.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
from collections.abc import Iterable
from typing import Any

VARIABLE = "SOFTRUN_SNAPSHOTS"
"""The environment variable that tells a worker where its node's keeper listens."""
TIMEOUT_S = 120.0
"""How long one node's end waits for another's to send or to take something. Much memory is not there at once."""
LOCAL_TIMEOUT_S = 600.0
"""How long a worker waits for its own node's keeper, which may have to make room for all workers in turn."""
GREETING_S = 5.0
MOST_TEXT = 1 << 28
MOST_UNPROVEN = 4096
KEY_BYTES = 32

_HEAD = struct.Struct("!I")


class WireError(ConnectionError):
    """The other end has gone, or says what cannot be meant."""


def send(sock: socket.socket, message: Any, descriptors: Iterable[int] = ()) -> None:
    """Send a message, over a local socket with open files. Raises OSError."""
    content = json.dumps(message).encode()
    head = _HEAD.pack(len(content))
    if descriptors := list(descriptors):
        sent = socket.send_fds(sock, [head], descriptors)
        head = head[sent:]
    sock.sendall(head + content)


def receive(sock: socket.socket, most: int = MOST_TEXT) -> dict[str, Any]:
    """Receive a message. Raises OSError, a WireError if the other end has gone or says something else."""
    return _read(sock, receive_bytes(sock, _HEAD.size), most)


def receive_with_files(sock: socket.socket, count: int) -> tuple[dict[str, Any], list[int]]:
    """Receive a message with up to `count` open files, which the caller must close. Raises OSError."""
    head, descriptors, _, _ = socket.recv_fds(sock, _HEAD.size, count)
    rest = receive_bytes(sock, _HEAD.size - len(head)) if head else b""
    return _read(sock, head + rest, MOST_TEXT), descriptors


def receive_bytes(sock: socket.socket, size: int) -> bytes:
    """Receive exactly so many bytes. Raises OSError."""
    found = bytearray(size)
    receive_into(sock, memoryview(found))
    return bytes(found)


def receive_into(sock: socket.socket, room: memoryview) -> None:
    """Fill `room`. Raises OSError."""
    while len(room):
        count = sock.recv_into(room)
        if count == 0:
            raise WireError("the other end has closed the connection")
        room = room[count:]


def meet(sock: socket.socket, key: bytes) -> None:
    """The client's part of the greeting over TCP. Raises OSError if the keeper does not know the key."""
    _answer_at_once(sock)
    own = secrets.token_hex(16)
    send(sock, {"nonce": own})
    theirs = _word(receive(sock, MOST_UNPROVEN), "nonce")
    send(sock, {"proof": _proof(key, "client", own, theirs)})
    if not _same(_word(receive(sock, MOST_UNPROVEN), "proof"), _proof(key, "keeper", own, theirs)):
        raise WireError("whoever answers is not a keeper of this job")


def welcome(sock: socket.socket, keys: Iterable[bytes]) -> None:
    """The keeper's part. Raises OSError if the client knows none of the keys."""
    _answer_at_once(sock)
    theirs = _word(receive(sock, MOST_UNPROVEN), "nonce")
    own = secrets.token_hex(16)
    send(sock, {"nonce": own})
    proof = _word(receive(sock, MOST_UNPROVEN), "proof")
    for key in keys:
        if _same(proof, _proof(key, "client", theirs, own)):
            send(sock, {"proof": _proof(key, "keeper", theirs, own)})
            return
    raise WireError("a stranger has asked for snapshots")


def _answer_at_once(sock: socket.socket) -> None:
    """Else the kernel keeps what follows a short answer until that has been acknowledged, for 10 ms or more."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _read(sock: socket.socket, head: bytes, most: int) -> dict[str, Any]:
    if len(head) < _HEAD.size:
        raise WireError("the other end has closed the connection")
    (size,) = _HEAD.unpack(head)
    if size > most:
        raise WireError(f"a message of {size} bytes: at most {most} are read")
    try:
        message = json.loads(receive_bytes(sock, size))
    except ValueError as error:
        raise WireError(f"not a message: {error}") from None
    if not isinstance(message, dict):
        raise WireError("not a message")
    return message


def _word(message: dict[str, Any], name: str) -> str:
    word = message.get(name)
    if not isinstance(word, str):
        raise WireError(f"a greeting without {name!r}")
    return word


def _proof(key: bytes, part: str, nonce: str, answer: str) -> str:
    return hmac.digest(key, json.dumps([part, nonce, answer]).encode(), "sha256").hex()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
