"""What every store must do."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest
from values import member
from values import opened as opened_round

from softrun.agent.errors import StoreLostError
from softrun.agent.protocol.codec import encode_round
from softrun.agent.protocol.observations import LeaseRenewed, Observation, RecordSeen, StoreLost
from softrun.agent.store.base import Change, Store, StoreThreads
from softrun.agent.store.etcd import EtcdStore
from softrun.agent.store.etcd_client import EtcdAccess
from softrun.agent.store.memory import MemoryStore

Open = Callable[[], Store]
MANY = 40  # versions


@pytest.fixture(params=["memory", pytest.param("etcd", marks=pytest.mark.etcd)])
def open_store(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Each call opens the same job's store for another agent."""
    opened: list[Store] = []
    shared = MemoryStore()
    job = uuid.uuid4().hex
    access = EtcdAccess((request.getfixturevalue("etcd").endpoint,)) if request.param == "etcd" else None

    def open_store() -> Store:
        store = EtcdStore(job, f"node{len(opened)}", access, 5, 10) if access is not None else shared
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
    for version in range(1, MANY):
        a.create(version, b"%d" % version)
    seen = [3]
    while seen[-1] < MANY - 1:
        seen.append(int(in_thread(lambda: b.wait_beyond(seen[-1]))().record or b""))
    assert seen == sorted(set(seen)), "only newer ones"


def test_closing_frees_who_waits(open_store: Open) -> None:
    a = open_store()
    join = in_thread(lambda: a.wait_beyond(0))
    a.close()
    with pytest.raises(StoreLostError):
        join()


def test_the_record_is_seen_at_the_start_and_when_it_changes(open_store: Open) -> None:
    store = open_store()
    first = opened_round(member("a"))
    seen: SimpleQueue[Observation] = SimpleQueue()
    threads = StoreThreads(open_store, seen.put)
    threads.start()
    granted = seen.get(timeout=10) if store.leases is not None else None
    assert granted is None or isinstance(granted, LeaseRenewed)
    assert seen.get(timeout=10) == RecordSeen(None)
    store.create(first.version, encode_round(first))
    assert seen.get(timeout=10) == RecordSeen(first)
    threads.close()


def test_any_fault_of_a_store_is_told() -> None:
    class Faulty(MemoryStore):
        def latest(self) -> bytes | None:
            raise OSError("no such family")

    seen: SimpleQueue[Observation] = SimpleQueue()
    threads = StoreThreads(Faulty, seen.put)
    threads.start()
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
