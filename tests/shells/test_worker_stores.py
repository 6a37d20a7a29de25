from __future__ import annotations

import errno
import socket
from queue import SimpleQueue

import pytest

from local_cluster import PATIENCE_S, listens
from softrun.agent.protocol.observations import Observation, StoreLost, WorkerStoreOpened
from softrun.agent.workers import stores as worker_stores
from softrun.agent.workers.stores import KEPT, WorkerStores

NO_ADDRESS = "192.0.2.1"  # of documentation (RFC 5737), so of no host


def test_the_last_ones_stay_for_workers_that_are_slow_to_begin() -> None:
    seen: SimpleQueue[Observation] = SimpleQueue()
    stores = WorkerStores(seen.put, "127.0.0.1")
    ports = []
    for _ in range(KEPT + 2):
        stores.open()
        opened = seen.get(timeout=30)
        assert isinstance(opened, WorkerStoreOpened)
        ports.append(opened.port)
    for port in ports[:-1]:
        stores.close(port)
    stores.open()
    seen.get(timeout=30)  # whatever was asked for before is done
    assert [listens(port) for port in ports] == [False, *[True] * (KEPT + 1)]
    stores.close_all()
    assert not any(listens(port) for port in ports)


def test_a_host_may_be_without_its_address_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    listening, tried = worker_stores.listening, []

    def returns_late(host: str) -> socket.socket:
        tried.append(host)
        if len(tried) < 3:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return listening(host)

    monkeypatch.setattr(worker_stores, "listening", returns_late)
    seen: SimpleQueue[Observation] = SimpleQueue()
    stores = WorkerStores(seen.put, "127.0.0.1")
    stores.open()
    assert isinstance(seen.get(timeout=PATIENCE_S), WorkerStoreOpened)
    assert len(tried) == 3
    stores.close_all()


def test_one_that_never_has_its_address_again_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_stores, "ADDRESS_AWAY_S", 0.5)
    seen: SimpleQueue[Observation] = SimpleQueue()
    stores = WorkerStores(seen.put, NO_ADDRESS)
    stores.open()
    lost = seen.get(timeout=PATIENCE_S)
    assert isinstance(lost, StoreLost)
    assert "Cannot assign requested address" in lost.reason
    assert f"give this host its address {NO_ADDRESS} back" in lost.reason
    stores.close_all()


def test_who_ends_meanwhile_does_not_wait_for_it() -> None:
    seen: SimpleQueue[Observation] = SimpleQueue()
    stores = WorkerStores(seen.put, NO_ADDRESS)
    stores.open()
    stores.close_all()
    assert isinstance(seen.get(timeout=1.0), StoreLost)
