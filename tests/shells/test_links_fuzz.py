"""Nothing that comes over a connection raises anything in the loop, and the links that stand go on standing."""

from __future__ import annotations

import json
import logging
import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from shells.test_links import REPORT, SECRET, End, connect, until

from softrun.agent.links.handshake import Dialling, Identity
from softrun.agent.links.quiet_log import QuietLog
from softrun.agent.links.sealing import Sealing
from softrun.agent.protocol.codec import encode_message
from softrun.agent.protocol.model import Beat, Hello
from softrun.agent.protocol.observations import Heard

SEED = 20_240
VALUES: list[Any] = [None, True, -1, 0, 1, 1.5, float("nan"), float("inf"), 10**30, "", "a", "\0", "\x1b[0m", "x" * 600]
VALUES += [[], {}, [[[]]], {"a": {}}, "ü" * 70, "1" * 64, "127.0.0.1", "no.such.host.invalid"]


def mutated(line: bytes, draw: random.Random) -> bytes:
    """The line with a few bytes changed, left out, repeated or put in."""
    data = bytearray(line)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(5):
            case 0:
                data[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                del data[at : at + draw.randint(1, 20)]
            case 2:
                data[at:at] = data[at : at + draw.randint(1, 20)]
            case 3:
                data[at:at] = draw.randbytes(draw.randint(1, 8))
            case 4:
                data = data[:at]
    return bytes(data)


def strange_document(line: bytes, draw: random.Random) -> bytes:
    """The line's document with a field or two of other values."""
    document = json.loads(line)
    for _ in range(draw.randint(1, 2)):
        field = draw.choice(list(document) or ["x"])
        if draw.random() < 0.2:
            document.pop(field, None)
        else:
            document[field] = draw.choice(VALUES)
    return json.dumps(document).encode()


def answer_from(sock: socket.socket, end: End) -> bytes:
    """The line that the agent answers with, if it does."""
    answer = b""
    for _ in range(50):
        end.turn()
        with suppress(BlockingIOError, ConnectionError):
            answer += sock.recv(4096)
            if answer.endswith(b"\n"):
                break
    return answer


def attack(end: End, draw: random.Random, secret: bytes | None, count: int) -> None:
    """One connection that begins well, or does not, and then says something else `count` times."""
    identity = Identity("job", draw.choice(["a", "x", "y", "b"]), "127.0.0.1", draw.randint(1, 65535), secret)
    dialling = Dialling(identity, draw.choice(["b", "b", ""]), draw.choice(["1", "2"]) * 64, draw.random() < 0.1)
    kind = draw.randrange(5)
    with socket.socket() as sock:
        sock.connect(("127.0.0.1", end.links.port))
        sock.setblocking(False)
        sealing: Sealing | None = None
        with suppress(OSError):
            match kind:
                case 0:
                    for _ in range(count):
                        sock.send(draw.randbytes(draw.randint(0, 200)) + draw.choice([b"", b"\n"]))
                        end.turn()
                    return
                case 1:
                    sock.send(mutated(dialling.greeting, draw) + b"\n")
                case 2:
                    sock.send(strange_document(dialling.greeting, draw) + b"\n")
                case _:
                    sock.send(dialling.greeting + b"\n")
                    with suppress(Exception):
                        met = dialling.answered(answer_from(sock, end).split(b"\n")[0])
                        sealing = met.sealing
                        if met.reply:
                            reply = met.reply if draw.random() < 0.8 else mutated(met.reply, draw)
                            sock.send(reply + b"\n")
            for _ in range(count):
                line = encode_message(draw.choice([Beat(), Hello(REPORT), REPORT]))
                if draw.random() < 0.5:
                    line = mutated(line, draw)
                if sealing is not None:
                    line = sealing.seal(line)
                if draw.random() < 0.3:
                    line = mutated(line, draw)
                sock.send(line + b"\n")
                if draw.random() < 0.3:
                    end.turn()
        for _ in range(2):
            end.turn()


@pytest.mark.parametrize("secret", [None, SECRET], ids=["no secret", "secret"])
@pytest.mark.parametrize("rounds", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_whatever_is_said(monkeypatch: pytest.MonkeyPatch, secret: bytes | None, rounds: int) -> None:
    draw = random.Random(SEED)
    faults: list[str] = []

    def fault(_self: QuietLog, text: str, *what: object) -> None:
        faults.append(text % what)

    raised: list[object] = []
    monkeypatch.setattr(QuietLog, "fault", fault)
    monkeypatch.setattr(threading, "excepthook", raised.append)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])  # no name is known, and none is waited for
    logging.getLogger("softrun.links").setLevel(logging.ERROR)
    a, b = End("honest", secret=secret), End("b", secret=secret)
    connect(a, b)
    try:
        for _ in range(rounds):
            attack(b, draw, secret, count=8)
            if draw.random() < 0.02:
                b.now += 10
        assert faults == []
        assert raised == []
        a.links.say("b", Hello(REPORT))
        b.seen.clear()
        until(a, b, see=Heard("honest", Hello(REPORT)), at=b)
        assert len(b.links._wiring.open) < 400
    finally:
        logging.getLogger("softrun.links").setLevel(logging.NOTSET)
        a.close()
        b.close()


@pytest.mark.parametrize("secret", [None, SECRET], ids=["no secret", "secret"])
@pytest.mark.parametrize("change", [mutated, strange_document], ids=["bytes", "fields"])
def test_whatever_is_answered(
    monkeypatch: pytest.MonkeyPatch, secret: bytes | None, change: Callable[[bytes, random.Random], bytes]
) -> None:
    """The dialler's end: an acceptor may say what it likes."""
    draw = random.Random(SEED)
    faults: list[str] = []
    monkeypatch.setattr(QuietLog, "fault", lambda _self, text, *what: faults.append(text % what))
    a = End("a", secret=secret)
    good = {"version": 5, "node": "b", "nonce": "1" * 64, "proof": "2" * 64, "host": "h", "port": 1}
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(300):
            a.links.dial(replace(a.member, node="b", port=server.getsockname()[1]))
            sock, _ = server.accept()
            with sock:
                a.turn()
                with suppress(OSError):
                    sock.send(change(json.dumps(good).encode(), draw) + b"\n" + draw.randbytes(20) + b"\n")
                a.turn()
            a.turn()
    assert faults == []
    a.close()
