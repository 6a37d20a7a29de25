"""Links on real sockets: two ends in one process, each with a loop of its own."""

from __future__ import annotations

import errno
import json
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from softrun.agent.links.dialled import PROBE_S
from softrun.agent.links.links import Links
from softrun.agent.links.listeners import ACCEPT_AGAIN_S
from softrun.agent.links.quiet_log import WARNINGS, WARNINGS_OF_ONE, WARNINGS_S
from softrun.agent.protocol.codec import MAX_LINE, PROTOCOL_VERSION
from softrun.agent.protocol.model import Beat, Hello, Member, NodeIntent, Report
from softrun.agent.protocol.observations import Heard, LinkDown, LinkUp, Observation

SECRET = b"the secret of these tests"


class End:
    """One agent's links and what was observed on them."""

    def __init__(self, node: str, job: str = "job", host: str = "127.0.0.1", **settings: Any) -> None:
        self.node = node
        self.host = host
        self.selector = selectors.DefaultSelector()
        self.seen: list[Observation] = []
        self.now = 0.0
        self.links = Links(
            self.selector,
            job=job,
            node=node,
            host=host,
            observe=self.seen.append,
            clock=lambda: self.now,
            **settings,
        )
        self.open = True

    @property
    def member(self) -> Member:
        return Member(self.node, 1, self.host, self.links.port, "role", ())

    def turn(self) -> None:
        if self.open:
            for key, mask in self.selector.select(0.001):
                key.data(mask)
            self.links.sweep()

    def die(self) -> None:
        """What the kernel does for a process that was killed: every socket is closed, nothing is flushed."""
        for key in list(self.selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self.selector.close()
        self.open = False

    def close(self) -> None:
        if self.open:
            self.open = False
            self.links.close()
            self.selector.close()


@pytest.fixture(params=[None, SECRET], ids=["no secret", "secret"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[End, End]]:
    pair = End("a", secret=request.param), End("b", secret=request.param)
    yield pair
    for end in pair:
        end.close()


def until(*ends: End, see: Observation, at: End) -> None:
    deadline = time.monotonic() + 10
    while see not in at.seen:
        assert time.monotonic() < deadline, f"{see} is not among {at.seen}"
        for end in ends:
            end.turn()


def until_true(*ends: End, so: Callable[[], object], patience_s: float = 10) -> None:
    """Turn the loops until it is so."""
    deadline = time.monotonic() + patience_s
    while not so():
        assert time.monotonic() < deadline, "it does not come true"
        for end in ends:
            end.turn()


REPORT = Report(Member("a", 1, "127.0.0.1", 1, "role", ()), NodeIntent.READY)


def connect(a: End, b: End) -> None:
    a.links.dial(b.member)
    until(a, b, see=LinkUp(b.node), at=a)


def test_both_ends_talk(ends: tuple[End, End]) -> None:
    a, b = ends
    connect(a, b)
    a.links.say("b", Hello(REPORT))
    until(a, b, see=Heard("a", Hello(REPORT)), at=b)
    b.links.say("a", REPORT)
    until(a, b, see=Heard("b", REPORT), at=a)
    b.links.say(None, Beat())
    until(a, b, see=Heard("b", Beat()), at=a)


def test_what_is_said_goes_out_at_the_next_flush_all_at_once(ends: tuple[End, End]) -> None:
    a, b = ends
    connect(a, b)
    a.links.say("b", Hello(REPORT))
    a.links.say("b", REPORT)
    assert a.links.deadline() == a.now, "a loop that does not flush by itself does not wait"
    b.turn()
    assert not b.seen
    a.links.flush()
    until(b, see=Heard("a", Hello(REPORT)), at=b)
    assert b.seen == [Heard("a", Hello(REPORT)), Heard("a", REPORT)], "in one turn"


def test_who_ends_sends_what_it_has_said_and_is_gone_at_once(ends: tuple[End, End]) -> None:
    """Its listener closes first: so the first probe is refused."""
    a, b = ends
    connect(a, b)
    b.links.say("a", REPORT)
    b.close()
    until(a, see=LinkDown("b", refused=True), at=a)
    assert a.seen[1:] == [Heard("b", REPORT), LinkDown("b", refused=True)]


def test_a_peer_that_dies_is_certainly_gone_for_who_dialled(ends: tuple[End, End]) -> None:
    a, b = ends
    connect(a, b)
    b.die()
    until(a, see=LinkDown("b", refused=True), at=a)


def test_a_peer_that_dies_is_certainly_gone_for_who_accepted(ends: tuple[End, End]) -> None:
    a, b = ends
    connect(a, b)
    a.die()
    until(b, see=LinkDown("a", refused=True), at=b)


def test_a_link_that_is_hung_up_says_nothing_of_the_peers_life(ends: tuple[End, End]) -> None:
    a, b = ends
    connect(a, b)
    a.links.hang_up("b")
    until(a, b, see=LinkDown("a", refused=False), at=b)


def test_another_process_on_the_same_port_is_not_the_peer(ends: tuple[End, End]) -> None:
    a, b = ends
    connect(a, b)
    port = b.links.port
    b.die()
    with socket.create_server(("127.0.0.1", port)) as impostor:
        impostor.settimeout(10)
        deadline = time.monotonic() + 10
        impostor.setblocking(False)
        answered = False
        while LinkDown("b", refused=True) not in a.seen:
            assert time.monotonic() < deadline
            a.turn()
            if not answered:
                try:
                    sock, _ = impostor.accept()
                except BlockingIOError:
                    continue
                sock.send(json.dumps({"version": PROTOCOL_VERSION, "node": "somebody else"}).encode() + b"\n")
                answered = True
        sock.close()


def test_a_silent_peer_is_not_waited_for_for_ever(ends: tuple[End, End]) -> None:
    """Its kernel accepts, and nobody answers: a stopped process."""
    a, b = ends
    connect(a, b)
    link = a.links._dialled.link("b")
    assert link is not None
    assert link._sock is not None
    link._sock.shutdown(socket.SHUT_RD)  # the link is lost, and b is not asked to do anything
    until_true(a, so=lambda: a.links.deadline() == PROBE_S)
    a.now = PROBE_S - 0.1
    a.turn()
    assert a.seen == [LinkUp("b")]
    a.now = PROBE_S
    until(a, see=LinkDown("b", refused=False), at=a)
    assert not a.links._wiring.open


def test_an_agent_that_is_out_of_descriptors_does_everything_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It slept in its only loop, and the listener, which stays readable, brought it back there at once."""
    a, b = End("a"), End("b")
    connect(a, b)
    a.seen.clear()
    full = True
    accept = socket.socket.accept

    def refuse(listener: socket.socket) -> tuple[socket.socket, object]:
        if full:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", refuse)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("sleeps"))
    c = End("c")
    c.links.dial(b.member)
    until_true(b, c, so=lambda: caplog.records)
    a.links.say("b", Beat())
    until(a, b, c, see=Heard("a", Beat()), at=b)
    assert len(caplog.records) == 1, "it tries again after a while"
    full, b.now = False, ACCEPT_AGAIN_S
    until(a, b, c, see=LinkUp("b"), at=c)
    for end in (a, b, c):
        end.close()


def test_a_host_that_refuses_has_no_such_agent_any_more(ends: tuple[End, End]) -> None:
    a, b = ends
    member = b.member
    b.die()
    a.links.dial(member)
    until(a, see=LinkDown("b", refused=True), at=a)


def test_a_loopback_address_of_another_machine_proves_nothing(ends: tuple[End, End]) -> None:
    """It leads here, not there."""
    a, b = ends
    a.links._wiring.identity = replace(a.links._wiring.identity, host="192.0.2.1")
    member = b.member
    b.die()
    a.links.dial(member)
    until(a, see=LinkDown("b", refused=False), at=a)


@pytest.mark.parametrize(("node", "host"), [("x" * 600, "127.0.0.1"), ("b", "a\0b"), ("b", "")])
def test_a_member_that_nobody_can_be_is_not_reached(ends: tuple[End, End], node: str, host: str) -> None:
    a, b = ends
    a.links.dial(replace(b.member, node=node, host=host))
    until(a, b, see=LinkDown(node, refused=False), at=a)
    assert b.seen == []


def test_another_job_is_refused(ends: tuple[End, End]) -> None:
    a, _ = ends
    other = End("b", job="another", secret=a.links._wiring.identity.secret)
    a.links.dial(other.member)
    until(a, other, see=LinkDown("b", refused=False), at=a)
    other.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"garbage\n",
        b"[1]\n",
        b"[" * 100_000 + b"\n",
        b'{"job": "job"}\n',
        b'{"job": "job", "node": "x", "to": "b", "host": "h", "port": "zz"}\n',
        b'{"job": "job", "node": "x", "to": "b", "host": "h", "port": 70000}\n',
        b"x" * (MAX_LINE + 2),
    ],
    ids=["no JSON", "a list", "deep", "too little", "no port", "a large port", "long"],
)
def test_garbage_is_refused(ends: tuple[End, End], garbage: bytes) -> None:
    a, b = ends
    with socket.create_connection(("127.0.0.1", b.links.port)) as sock:
        sock.setblocking(False)
        sent, deadline = 0, time.monotonic() + 10
        while True:
            assert time.monotonic() < deadline
            b.turn()
            try:
                sent += sock.send(garbage[sent:]) if sent < len(garbage) else 0
                if sock.recv(100) == b"":
                    break
            except BlockingIOError:
                continue
            except ConnectionError:
                break
    connect(a, b)  # and the links go on


def test_what_is_said_last_arrives_though_the_link_is_closed_at_once(ends: tuple[End, End]) -> None:
    a, b = ends
    connect(a, b)
    last = Report(Member("a", 1, "127.0.0.1", 1, "role", ()), NodeIntent.FAILED, reason="x" * 60_000)
    a.links.say("b", last)
    a.open = False
    closing = time.monotonic()
    # The rest is sent while closing; the other end must read meanwhile, as another process would.
    import threading

    thread = threading.Thread(target=a.links.close, args=(5.0,))
    thread.start()
    until(b, see=Heard("a", last), at=b)
    thread.join(10)
    assert time.monotonic() - closing < 5


def test_an_agent_of_another_version_is_refused_and_both_ends_say_why(
    ends: tuple[End, End], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = ends
    ours, theirs = PROTOCOL_VERSION, PROTOCOL_VERSION - 1
    with socket.create_connection(("127.0.0.1", b.links.port)) as old:
        old.setblocking(False)
        old.send(json.dumps({"job": "job", "node": "o", "to": "b", "host": "h", "port": 1}).encode() + b"\n")
        answer = read_until_closed(old, b)
    assert json.loads(answer) == {"version": ours, "node": "b"}
    assert f"link to o closed: it speaks protocol version 0, this agent {ours}: install the same" in caplog.text

    with socket.create_server(("127.0.0.1", 0)) as old:
        a.links.dial(replace(b.member, port=old.getsockname()[1]))
        sock, _ = old.accept()
        sock.send(json.dumps({"version": theirs, "node": "b"}).encode() + b"\n")
        until(a, see=LinkDown("b", refused=False), at=a)
        sock.close()
    assert f"link to b closed: it speaks protocol version {theirs}, this agent {ours}: install the same" in caplog.text


def read_until_closed(sock: socket.socket, end: End) -> bytes:
    received, deadline = b"", time.monotonic() + 10
    while True:
        assert time.monotonic() < deadline
        end.turn()
        with suppress(BlockingIOError):
            data = sock.recv(1000)
            if not data:
                return received
            received += data


def test_who_can_reach_the_port_cannot_fill_the_log(ends: tuple[End, End], caplog: pytest.LogCaptureFixture) -> None:
    _, b = ends
    for moment, lines in ((0.0, WARNINGS_OF_ONE), (WARNINGS_S, 2 * WARNINGS_OF_ONE)):
        b.now = moment
        for _ in range(WARNINGS + 5):
            with socket.create_connection(("127.0.0.1", b.links.port)) as stranger:
                stranger.setblocking(False)
                stranger.send(b"GET / HTTP/1.1\n")
                read_until_closed(stranger, b)
        assert len(caplog.records) == lines
