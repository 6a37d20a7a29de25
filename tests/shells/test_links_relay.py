"""What comes to the endpoint and is no agent's is passed on to the workers' store."""

from __future__ import annotations

import hashlib
import secrets
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

import pytest
from shells.test_links import End, until, until_true
from shells.test_links_strangers import is_closed
from torch.distributed import TCPStore

from softrun.agent.links import relay
from softrun.agent.links.relay import ANSWER_S, MOST_RELAYS
from softrun.agent.protocol.effects import Seek
from softrun.agent.protocol.model import Address
from softrun.agent.protocol.observations import Found, Listening


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def host(stack: ExitStack) -> End:
    """An agent that listens at an endpoint."""
    a = End("a")
    stack.callback(a.close)
    a.links.seek(Seek(Address("127.0.0.1", 0), 1.0))
    assert a.seen.pop() == Listening(Address("127.0.0.1", 0))
    return a


class Loop:
    """Turns an agent's loop in a thread, while entered."""

    def __init__(self, end: End) -> None:
        self._end = end
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._turn)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _turn(self) -> None:
        while not self._ended.is_set():
            self._end.turn()


def worker(end: End, stack: ExitStack, port: int | None = None) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port or end.links.endpoint_port or 0), timeout=20)
    return stack.enter_context(sock)


def echo(stack: ExitStack) -> int:
    """The port of a server that sends everything back, and closes its end when the other end is closed."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2000))

    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)

    def serve() -> None:
        with suppress(OSError, ValueError):
            while server.fileno() >= 0:
                for key, _ in selector.select(0.05):
                    if key.fileobj is server:
                        selector.register(server.accept()[0], selectors.EVENT_READ)
                        continue
                    assert isinstance(key.fileobj, socket.socket)
                    data = key.fileobj.recv(1 << 16)
                    if data:
                        key.fileobj.sendall(data)
                    else:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return int(server.getsockname()[1])


def test_bytes_go_both_ways_and_each_end_may_close_its_half(host: End, stack: ExitStack) -> None:
    host.links.relay_to(echo(stack))
    sent = b"\x00" + secrets.token_bytes(3_000_000)
    with Loop(host):
        sock = worker(host, stack)

        def send() -> None:
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=send)
        thread.start()
        came = b""
        while data := sock.recv(1 << 16):
            came += data
        thread.join()
    assert hashlib.sha256(came).digest() == hashlib.sha256(sent).digest()
    until_true(host, so=lambda: len(host.links._relays) == 0)
    assert not host.links._wiring.open


def test_a_real_store_is_reached_at_the_endpoint(host: End, stack: ExitStack) -> None:
    settings: dict[str, Any] = {"wait_for_workers": False, "timeout": timedelta(seconds=20)}
    store = TCPStore("127.0.0.1", 0, is_master=True, **settings)
    host.links.relay_to(store.port)
    with Loop(host):
        client = TCPStore("127.0.0.1", host.links.endpoint_port or 0, is_master=False, **settings)
        client.set("key", "x" * 100_000)
        assert store.get("key") == b"x" * 100_000
        store.set("other", "value")
        assert client.get("other") == b"value"
        assert client.add("count", 5) == 5
        del client
    until_true(host, so=lambda: len(host.links._relays) == 0)


def test_agents_still_find_the_job_there(host: End, stack: ExitStack) -> None:
    host.links.relay_to(echo(stack))
    b = End("b")
    stack.callback(b.close)
    endpoint = Address("127.0.0.1", host.links.endpoint_port or 0)
    b.links.seek(Seek(endpoint, 1.0))
    until(host, b, see=Found(endpoint, "a"), at=b)


@pytest.mark.parametrize("where", ["no store", "no endpoint", "nobody listens"])
def test_it_is_closed_where_there_is_nothing_to_pass_it_on_to(
    host: End, stack: ExitStack, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    if where == "no endpoint":
        host.links.relay_to(echo(stack))
    elif where == "nobody listens":
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        host.links.relay_to(port)
    sock = worker(host, stack, host.links.port if where == "no endpoint" else None)
    sock.send(b"\x01not an agent's\n")
    sock.setblocking(False)

    def is_closed() -> bool:
        try:
            return sock.recv(100) == b""
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    until_true(host, so=is_closed)
    assert len(host.links._relays) == 0
    assert len(caplog.records) == 1


def test_who_reads_nothing_makes_the_agent_keep_little(host: End, stack: ExitStack) -> None:
    host.links.relay_to(echo(stack))
    sock = worker(host, stack)
    sock.setblocking(False)
    sent = 0
    idle = 0
    while idle < 50:  # until nothing is taken any more
        host.turn()
        try:
            sent += sock.send(b"\x00" * (1 << 16))
            idle = 0
        except BlockingIOError:
            idle += 1
    (relay,) = host.links._relays._relays
    assert sum(map(len, relay._waiting.values())) <= 2 << 16
    sock.close()
    until_true(host, so=lambda: len(host.links._relays) == 0)


def test_a_store_that_dies_closes_the_workers_end(host: End, stack: ExitStack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as store:
        host.links.relay_to(store.getsockname()[1])
        sock = worker(host, stack)
        sock.send(b"\x00")
        until_true(host, so=lambda: len(host.links._relays) == 1)
        for _ in range(10):
            host.turn()
        peer, _ = store.accept()
        peer.close()
    sock.setblocking(False)

    def is_closed() -> bool:
        try:
            return sock.recv(100) == b""
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    until_true(host, so=is_closed)
    sock.close()
    until_true(host, so=lambda: len(host.links._relays) == 0)


def mute(stack: ExitStack) -> int:
    """The port of a store that never answers."""
    return int(stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1])


def test_whom_the_store_does_not_answer_has_five_seconds(host: End, stack: ExitStack) -> None:
    host.links.relay_to(mute(stack))
    stranger = worker(host, stack)
    stranger.send(b"\x00")
    until_true(host, so=lambda: len(host.links._relays) == 1)
    assert host.links.deadline() == ANSWER_S
    host.now = ANSWER_S
    until_true(host, so=lambda: len(host.links._relays) == 0)
    stranger.setblocking(False)
    assert is_closed(stranger)
    assert host.links.deadline() is None


def test_whom_it_has_answered_may_be_silent_for_as_long_as_it_likes(host: End, stack: ExitStack) -> None:
    host.links.relay_to(echo(stack))
    sock = worker(host, stack)
    sock.setblocking(False)
    sock.send(b"\x00")
    until_true(host, so=lambda: received(sock) == b"\x00")
    host.now = 10 * ANSWER_S
    host.turn()
    sock.send(b"\x01")
    until_true(host, so=lambda: received(sock) == b"\x01")


def received(sock: socket.socket) -> bytes:
    with suppress(BlockingIOError):
        return sock.recv(1)
    return b""


def test_a_worker_reaches_its_store_beside_any_number_of_idle_strangers(
    host: End, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "MOST_RELAYS", 8)
    settings: dict[str, Any] = {"wait_for_workers": False, "timeout": timedelta(seconds=20)}
    store = TCPStore("127.0.0.1", 0, is_master=True, **settings)
    host.links.relay_to(store.port)
    for _ in range(30):
        worker(host, stack).send(b"\x00")
    with Loop(host):
        clients = [TCPStore("127.0.0.1", host.links.endpoint_port or 0, is_master=False, **settings) for _ in range(8)]
        for number, client in enumerate(clients):
            client.set(f"key {number}", "value")
        assert clients[0].get("key 7") == b"value"


@pytest.mark.slow
def test_relays_are_bounded(host: End, stack: ExitStack) -> None:
    host.links.relay_to(echo(stack))
    for _ in range(MOST_RELAYS + 10):
        worker(host, stack).send(b"\x00")
        host.turn()
    until_true(host, so=lambda: len(host.links._relays) == MOST_RELAYS)
    for _ in range(20):
        host.turn()
    assert len(host.links._relays) == MOST_RELAYS
    assert len(host.links._strangers) == 0
