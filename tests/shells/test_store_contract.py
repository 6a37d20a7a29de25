"""What every store must do."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from queue import SimpleQueue

import pytest

from local_cluster import free_port
from softrun.agent.errors import StoreLostError, UsageError
from softrun.agent.protocol.observations import Observation, StoreLost, StoreReady
from softrun.agent.store import c10d
from softrun.agent.store.base import Change, Store, StoreThreads
from softrun.agent.store.c10d import KEPT, C10dStore, parse_endpoint
from softrun.agent.store.etcd import EtcdStore
from softrun.agent.store.etcd_client import EtcdAccess
from softrun.agent.store.memory import MemoryStore

Open = Callable[[], Store]


@pytest.fixture(params=["memory", "c10d", pytest.param("etcd", marks=pytest.mark.etcd)])
def open_store(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Each call opens the same job's store for another agent."""
    opened: list[Store] = []
    shared = MemoryStore()
    port = free_port()
    job = uuid.uuid4().hex
    access = EtcdAccess((request.getfixturevalue("etcd").endpoint,)) if request.param == "etcd" else None

    def open_store() -> Store:
        store: Store
        if access is not None:
            store = EtcdStore(job, f"node{len(opened)}", access, 5, 10)
        else:
            store = shared if request.param == "memory" else C10dStore(job, "127.0.0.1", port, 10)
        opened.append(store)
        return store

    yield open_store
    for store in opened:
        store.close()


def in_thread(call: Callable[[], Change]) -> Callable[[], Change]:
    """Start `call`; the result waits for it, and raises what it raised."""
    outcome: list[Change | Exception] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def join() -> Change:
        thread.join(10)
        assert not thread.is_alive(), "it blocks"
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    return join


def test_empty_at_first(open_store: Open) -> None:
    assert open_store().latest() is None


def test_a_version_is_created_once_and_the_loser_gets_the_winners(open_store: Open) -> None:
    a, b = open_store(), open_store()
    assert a.create(1, b"of a") == b"of a"
    assert b.create(1, b"of b") == b"of a"
    assert a.latest() == b.latest() == b"of a"
    assert b.create(2, b"of b") == b"of b"
    assert a.latest() == b"of b"


def test_waiting_is_woken_by_the_next_version(open_store: Open) -> None:
    a, b = open_store(), open_store()
    a.create(1, b"1")
    join = in_thread(lambda: b.wait_beyond(1))
    a.create(2, b"2")
    assert join().record == b"2"


def test_waiting_for_what_is_there_reaches_the_newest(open_store: Open) -> None:
    a, b = open_store(), open_store()
    for version in range(1, 2 * KEPT):
        a.create(version, b"%d" % version)
    seen = [3]
    while seen[-1] < 2 * KEPT - 1:
        seen.append(int(in_thread(lambda: b.wait_beyond(seen[-1]))().record or b""))
    assert seen == sorted(set(seen)), "only newer ones"


def test_beats_are_counted_for_all(open_store: Open) -> None:
    a, b = open_store(), open_store()
    if a.leader_beats is None or b.leader_beats is None:
        assert a.leases is not None, "one of the two says whether anybody is left"
        return
    assert b.leader_beats.beats() == 0
    assert a.leader_beats.beat() == 1
    assert a.leader_beats.beat() == 2
    assert b.leader_beats.beats() == 2


def test_closing_frees_who_waits(open_store: Open) -> None:
    a = open_store()
    join = in_thread(lambda: a.wait_beyond(0))
    a.close()
    with pytest.raises(StoreLostError):
        join()


def test_the_loss_of_the_host_is_pushed_to_the_others() -> None:
    port = free_port()
    host = C10dStore("job", "127.0.0.1", port, 10)
    guest = C10dStore("job", "localhost", port, 10)
    assert (host.hosted, guest.hosted) == (True, False), "by IP or by name, the one who came first hosts"
    join = in_thread(lambda: guest.wait_beyond(0))
    host.close()
    with pytest.raises(StoreLostError, match=f"the store at localhost:{port} is lost"):
        join()
    with pytest.raises(StoreLostError):
        guest.beat()


def test_whoever_calls_for_a_store_that_is_gone_hosts_it_when_the_port_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that begin when the host of an earlier job ends neither would, and both would wait."""
    connect, called = C10dStore._connect, threading.Event()

    def calls(*args: object, **options: object) -> object:
        called.set()
        return connect(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(C10dStore, "_connect", calls)
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        join = in_thread(lambda: C10dStore("job", "127.0.0.1", port, 30))
        assert called.wait(10)
    store = join()
    assert store.hosted
    store.close()


def test_a_host_that_leaves_waits_for_the_others_and_not_for_the_dead() -> None:
    port = free_port()
    host, guest = C10dStore("job", "127.0.0.1", port, 10), C10dStore("job", "127.0.0.1", port, 10)
    guest.leave(over=False)
    host.leave(over=False)  # at once: everybody has left
    guest.close()
    host.close()


def test_who_is_told_to_host_and_cannot_says_so() -> None:
    with socket.create_server(("", 0)) as taken, pytest.raises(StoreLostError, match="cannot be hosted"):
        C10dStore("job", "127.0.0.1", taken.getsockname()[1], 1, is_host=True)


def test_who_is_told_to_host_does_whatever_the_address_is() -> None:
    store = C10dStore("job", "192.0.2.1", free_port(), 1, is_host=True)  # that of a service which leads here, say
    assert store.hosted
    assert store.beat() == 1
    store.close()


@pytest.mark.parametrize(
    ("endpoint", "parsed"),
    [
        ("host1:1234", ("host1", 1234)),
        ("host1", ("host1", 29400)),
        ("", ("localhost", 29400)),
        ("10.0.0.1:0", ("10.0.0.1", 0)),
        ("[fe80::1]:77", ("fe80::1", 77)),
        ("[::1]", ("::1", 29400)),
    ],
)
def test_endpoints(endpoint: str, parsed: tuple[str, int]) -> None:
    assert parse_endpoint(endpoint) == parsed


@pytest.mark.parametrize("endpoint", ["host:port", "host:70000", ":5", "http://host:5", "a b:5", "host:-1"])
def test_wrong_endpoints(endpoint: str) -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        parse_endpoint(endpoint)


def test_a_wait_that_outlasts_its_bound_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c10d, "_WAIT", timedelta(milliseconds=50))
    port = free_port()
    a, b = C10dStore("job", "127.0.0.1", port, 10), C10dStore("job", "127.0.0.1", port, 10)
    waits: list[object] = []
    original = type(b._watch).wait

    class Watch:
        def wait(self, keys: list[str], timeout: timedelta) -> None:
            waits.append(keys)
            if len(waits) == 3:
                a.create(1, b"1")
            original(b_watch, keys, timeout)

        def __getattr__(self, name: str) -> object:
            return getattr(b_watch, name)

    b_watch = b._watch
    b._watch = Watch()  # type: ignore[assignment]
    assert in_thread(lambda: b.wait_beyond(0))().record == b"1"
    assert len(waits) >= 3
    b.close()
    a.close()


def test_an_ipv6_endpoint_serves_others() -> None:
    port = free_port()
    host, guest = C10dStore("job", "::1", port, 10), C10dStore("job", "::1", port, 10)
    guest.create(1, b"1")
    assert host.latest() == b"1"
    guest.close()
    host.close()


def test_any_fault_of_a_store_is_told() -> None:
    class Faulty(MemoryStore):
        def latest(self) -> bytes | None:
            raise OSError("no such family")

    seen: SimpleQueue[Observation] = SimpleQueue()
    threads = StoreThreads(Faulty, seen.put)
    threads.start()
    assert seen.get(timeout=10) == StoreReady(hosted=False)
    lost = seen.get(timeout=10)
    assert isinstance(lost, StoreLost)
    assert "no such family" in lost.reason
    threads.close()


def test_a_store_that_still_connects_does_not_hold_up_the_end() -> None:
    connected, go_on = threading.Event(), threading.Event()
    store = MemoryStore()

    def open_slowly() -> Store:
        connected.set()
        go_on.wait(10)
        return store

    threads = StoreThreads(open_slowly, lambda _: None)
    threads.start()
    connected.wait(10)
    threads.close()
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == "softrun-store":
            thread.join(10)
    with pytest.raises(StoreLostError):  # the thread has closed what it had opened in vain
        store.latest()
