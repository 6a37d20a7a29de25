"""What strangers can cost: a few descriptors, a few kilobytes and ten lines of log a minute, however many they are."""

from __future__ import annotations

import json
import os
import resource
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest
from shells.test_links import SECRET, End, connect, until, until_true

from softrun.agent.links.connection import FIRST_BYTES
from softrun.agent.links.handshake import Dialling, Identity
from softrun.agent.links.listeners import ACCEPT_AGAIN_S
from softrun.agent.links.quiet_log import MOST_CHARACTERS, WARNINGS, WARNINGS_OF_ONE, WARNINGS_S, QuietLog
from softrun.agent.links.strangers import GREETING_S, MOST_STRANGERS, PATIENCE_S
from softrun.agent.protocol.codec import MAX_LINE
from softrun.agent.protocol.model import Beat
from softrun.agent.protocol.observations import Heard, LinkDown, LinkUp

#: Connects that many times, says `first`, prints a line and waits for the end of its input.
CROWD = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
port, many, first = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
socks = []
for i in range(many):
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex(("127.0.0.1", port))
    socks.append(sock)
    if first:
        try:
            sock.send(first)
        except OSError:
            pass
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=[None, SECRET], ids=["no secret", "secret"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[End, End]]:
    a, b = End("a", secret=request.param), End("b", secret=request.param)
    yield a, b
    a.close()
    b.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def stranger(to: End, stack: ExitStack, first: bytes = b"{") -> socket.socket:
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", to.links.port)))
    sock.setblocking(False)
    if first:
        sock.send(first)
    return sock


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def greeting(end: End, node: str, secret: bytes | None = None, port: int = 1) -> bytes:
    """The greeting of an agent, with the secret of the other end unless it has one of its own."""
    ours = end.links._wiring.identity
    nonce = secrets.token_hex(32) if ours.secret is not None else ""
    return (
        Dialling(Identity(ours.job, node, "127.0.0.1", port, secret or ours.secret), end.node, nonce).greeting + b"\n"
    )


def test_a_stranger_has_five_seconds(ends: tuple[End, End], stack: ExitStack) -> None:
    _, b = ends
    sock = stranger(b, stack)
    until_true(b, so=lambda: len(b.links._strangers) == 1)
    assert b.links.deadline() == GREETING_S
    b.now = GREETING_S - 0.1
    b.turn()
    sock.send(b"}")  # which does not buy it more time
    b.turn()
    assert not is_closed(sock)
    b.now = GREETING_S
    until_true(b, so=lambda: is_closed(sock))
    assert b.links.deadline() is None
    assert not b.links._wiring.open


def test_who_greets_and_proves_nothing_has_five_seconds_too(stack: ExitStack) -> None:
    b = End("b", secret=SECRET)
    sock = stranger(b, stack, greeting(b, "a"))
    until_true(b, so=lambda: len(b.links._strangers) == 1)
    b.now = GREETING_S
    until_true(b, so=lambda: is_closed(sock))
    assert b.seen == []
    b.close()


def test_a_greeting_may_come_byte_by_byte(ends: tuple[End, End], stack: ExitStack) -> None:
    _, b = ends
    sock = stranger(b, stack, b"")
    for byte in greeting(b, "a"):
        sock.send(bytes([byte]))
        b.turn()
    answer = b""

    def answered() -> bool:
        nonlocal answer
        with suppress(BlockingIOError):
            answer += sock.recv(4096)
        return answer.endswith(b"\n")

    until_true(b, so=answered)
    assert json.loads(answer)["node"] == "b"


@pytest.mark.parametrize("line", [b"{" * (FIRST_BYTES + 1), b"{" * 4000 + b"\n" * 2], ids=["without an end", "a line"])
def test_a_stranger_is_not_listened_to_for_long(ends: tuple[End, End], stack: ExitStack, line: bytes) -> None:
    _, b = ends
    sock = stranger(b, stack, line)
    until_true(b, so=lambda: is_closed(sock))
    assert len(b.links._strangers) == 0


def test_known_peers_may_say_more(ends: tuple[End, End]) -> None:
    a, b = ends
    connect(a, b)
    link = a.links._dialled.link("b")
    assert link is not None
    a.links._send(link, b"x" * (MAX_LINE + 1))
    until(a, b, see=LinkDown("a", refused=False), at=b)


@pytest.mark.parametrize("first", [b"", b"{"], ids=["silent", "half a line"])
def test_an_honest_peer_gets_in_beside_them(ends: tuple[End, End], stack: ExitStack, first: bytes) -> None:
    a, b = ends
    crowd = [stranger(b, stack, first) for _ in range(3 * MOST_STRANGERS)]
    for _ in range(10):
        b.turn()
    began = time.monotonic()
    connect(a, b)
    assert time.monotonic() - began < 10
    assert len(b.links._strangers) <= MOST_STRANGERS
    assert not first or sum(map(is_closed, crowd)) >= 2 * MOST_STRANGERS, "the oldest are turned out"


def test_who_is_in_the_middle_of_a_handshake_may_finish_it(stack: ExitStack) -> None:
    """The listener waits for them, and who comes then keeps its place in the backlog."""
    a, b = End("a", secret=SECRET), End("b", secret=SECRET)
    crowd = [stranger(b, stack, greeting(b, f"x{i}")) for i in range(MOST_STRANGERS)]
    until_true(b, so=lambda: len(b.links._strangers) == MOST_STRANGERS)
    a.links.dial(b.member)
    for _ in range(20):
        a.turn()
        b.turn()
    assert len(b.links._strangers) == MOST_STRANGERS
    assert not any(is_closed(sock) for sock in crowd if sock.recv(4096) != b"")
    assert b.links.deadline() == PATIENCE_S
    crowd[5].close()  # there is room at once
    until(a, b, see=LinkUp("b"), at=a)
    a.close()
    b.close()


def test_whoever_does_not_have_the_secret_takes_nobodys_turn(stack: ExitStack) -> None:
    """No clock moves here: each of them is answered and forgotten at once, however many come."""
    a, b = End("a", secret=SECRET), End("b", secret=SECRET)
    crowd = [stranger(b, stack, greeting(b, f"x{i}", secret=b"a guess")) for i in range(4 * MOST_STRANGERS)]
    connect(a, b)
    until_true(b, so=lambda: all(map(is_closed, crowd)))
    assert len(b.links._strangers) == 0
    a.close()
    b.close()


def test_they_are_turned_out_when_they_take_too_long(stack: ExitStack) -> None:
    a, b = End("a", secret=SECRET), End("b", secret=SECRET)
    crowd = [stranger(b, stack, greeting(b, f"x{i}")) for i in range(2 * MOST_STRANGERS)]
    a.links.dial(b.member)
    for moment in range(4):
        b.now = moment * PATIENCE_S
        for _ in range(20):
            a.turn()
            b.turn()
    until(a, b, see=LinkUp("b"), at=a)
    assert crowd
    a.close()
    b.close()


def test_one_source_cannot_crowd_out_another(stack: ExitStack) -> None:
    b = End("b")
    honest = stack.enter_context(socket.create_connection(("127.0.0.1", b.links.port), source_address=("127.0.0.2", 0)))
    honest.setblocking(False)
    honest.send(b"{")
    until_true(b, so=lambda: len(b.links._strangers) == 1)
    for _ in range(2 * MOST_STRANGERS):
        stranger(b, stack)
    until_true(b, so=lambda: len(b.links._strangers) == MOST_STRANGERS)
    for _ in range(10):
        b.turn()
    assert not is_closed(honest)
    b.close()


@pytest.mark.slow
@pytest.mark.parametrize("first", [b"", b"{"], ids=["silent", "half a line"])
@pytest.mark.parametrize("secret", [None, SECRET], ids=["no secret", "secret"])
def test_ten_thousand_strangers(first: bytes, secret: bytes | None) -> None:
    """They sit in a process of their own. An honest peer gets in within a second, and the agent stays small."""
    a, b = End("a", secret=secret), End("b", secret=secret)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    many = 10_000 if hard == resource.RLIM_INFINITY else min(10_000, hard - 100)
    before = memory_bytes()
    crowd = subprocess.Popen(
        [sys.executable, "-c", CROWD, str(b.links.port), str(many), first.hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert crowd.stdout is not None
    try:
        os.set_blocking(crowd.stdout.fileno(), False)
        until_true(b, so=lambda: crowd.stdout is not None and crowd.stdout.readline(), patience_s=60)
        began = time.monotonic()
        connect(a, b)
        took = time.monotonic() - began
        a.links.say("b", Beat())
        until(a, b, see=Heard("a", Beat()), at=b)
        assert len(b.links._strangers) <= MOST_STRANGERS
        grown = memory_bytes() - before
    finally:
        crowd.communicate()
    print(f"{many} strangers: in after {took:.3f} s, {grown / 2**20:.1f} MiB more")
    assert took < 10  # much less, on a quiet machine
    assert grown < 32 << 20
    a.close()
    b.close()


def memory_bytes() -> int:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize()


def test_some_descriptors_are_kept_for_the_rest_of_the_agent(
    ends: tuple[End, End], stack: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = ends
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    limit = [(free + 5) * 4 // 3]  # a quarter of so few is kept
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit[0], limit[0]))
    crowd = [stranger(b, stack) for _ in range(10)]
    until_true(b, so=lambda: "too few descriptors" in caplog.text)
    a.links.dial(b.member)
    for _ in range(10):
        a.turn()
        b.turn()
    assert a.seen in ([], [LinkDown("b", refused=False)])
    limit[0] += 1000
    for sock in crowd:
        sock.close()
    b.now = ACCEPT_AGAIN_S
    a.links.dial(b.member)
    until(a, b, see=LinkUp("b"), at=a)


def test_what_a_stranger_says_is_not_printed_as_it_is(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    b = End("b")
    evil = "\x1b]0;title\x07\nsoftrun: error: forged \u202e" + "x" * 400
    line = json.dumps({"version": 1, "job": "job", "node": evil, "to": "b", "host": "h", "port": 1}).encode()
    for first in (line + b"\n", b"GET \x1b[31m /" + b"y" * 3000 + b"\n"):
        sock = stranger(b, stack, first)
        until_true(b, so=lambda sock=sock: is_closed(sock))
    for record in caplog.records:
        told = record.getMessage()
        assert told.isascii()
        assert told.isprintable()
        assert len(told) <= MOST_CHARACTERS
    assert len(caplog.records) == 2
    assert caplog.text.count("install the same release of softrun on every node") == 1
    b.close()


def test_the_log_says_how_many_lines_it_lacks(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = QuietLog(lambda: now[0])
    for i in range(WARNINGS + 7):
        log.warn("line %d", i)
    now[0] = WARNINGS_S
    log.warn("the next")
    log.warn("%s")
    told = [record.getMessage() for record in caplog.records]
    assert told[WARNINGS:] == ["the next (7 such lines were left out before this one)", "%s"]


def test_one_address_cannot_use_up_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = QuietLog(lambda: now[0])
    for i in range(WARNINGS):
        log.warn("noise %d", i, source="10.0.0.1")
    log.warn("its token is another one", source="10.0.0.2")
    now[0] = WARNINGS_S
    log.warn("noise", source="10.0.0.1")
    told = [record.getMessage() for record in caplog.records]
    noise = [f"noise {i}" for i in range(WARNINGS_OF_ONE)]
    left_out = WARNINGS - WARNINGS_OF_ONE
    assert told == [*noise, f"its token is another one ({left_out} such lines were left out before this one)", "noise"]


def test_an_error_that_nobody_foresaw_ends_one_connection_only(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = ends
    connect(a, b)
    with monkeypatch.context() as patch:
        patch.setattr("softrun.agent.links.accepted.decode_message", lambda _: 1 / 0)
        a.links.say("b", Beat())
        until(a, b, see=LinkDown("a", refused=False), at=b)
    assert "link to a closed: ZeroDivisionError: division by zero" in caplog.text
    until(a, b, see=LinkDown("b", refused=False), at=a)
    connect(a, b)


@pytest.mark.parametrize("host", ["ü" * 70, "no.such.host.invalid", "x" * 255, "..", "-", "1.2.3.4.5"])
def test_a_peer_with_a_senseless_address_harms_nobody(stack: ExitStack, host: str) -> None:
    """Without a secret anybody may be one. When it goes, its address is looked at, beside the loop."""
    b = End("b")
    line = greeting(b, "x").replace(b'"127.0.0.1"', json.dumps(host).encode())
    sock = stranger(b, stack, line)
    until_true(b, so=lambda: b.links._accepted.link("x") is not None)
    sock.close()
    until(b, see=LinkDown("x", refused=False), at=b)
    b.close()


def test_strangers_have_no_address_dialled_if_there_is_a_secret(stack: ExitStack) -> None:
    b = End("b", secret=SECRET)
    with socket.create_server(("127.0.0.1", 0)) as victim:
        victim.setblocking(False)
        sock = stranger(b, stack, greeting(b, "x", port=victim.getsockname()[1]))
        until_true(b, so=lambda: len(b.links._strangers) == 1)
        sock.close()
        until_true(b, so=lambda: len(b.links._strangers) == 0)
        for _ in range(10):
            b.turn()
        with pytest.raises(BlockingIOError):
            victim.accept()
    assert b.seen == []
    b.close()


def test_a_hundred_peers_at_once(stack: ExitStack) -> None:
    """More than there may be strangers, and none of them is turned away."""
    b = End("b", secret=SECRET)
    peers = [End(f"a{i}", secret=SECRET) for i in range(100)]
    for peer in peers:
        stack.callback(peer.close)
        peer.links.dial(b.member)
    waits: Callable[[], bool] = lambda: all(peer.seen for peer in peers)  # noqa: E731
    deadline = time.monotonic() + 20
    while not waits():
        assert time.monotonic() < deadline
        b.turn()
        for peer in peers:
            for key, mask in peer.selector.select(0):
                key.data(mask)
    assert all(peer.seen == [LinkUp("b")] for peer in peers)
    b.close()
