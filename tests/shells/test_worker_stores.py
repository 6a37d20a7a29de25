from __future__ import annotations

import errno
import socket
from pathlib import Path
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


def ports_of(worlds: int) -> list[int]:
    """The ports of so many worlds that follow one another."""
    seen: SimpleQueue[Observation] = SimpleQueue()
    stores = WorkerStores(seen.put, "127.0.0.1")
    ports = []
    for _ in range(worlds):
        stores.open()
        opened = seen.get(timeout=PATIENCE_S)
        assert isinstance(opened, WorkerStoreOpened)
        ports.append(opened.port)
        if len(ports) > 1:
            stores.close(ports[-2])
    stores.close_all()
    return ports


def test_the_ports_above_a_worlds_own_are_the_users() -> None:
    """MASTER_PORT + 2 + iteration, the original wrapper's idiom, is free through 1,000 restarts."""
    lowest_of_clients = int(worker_stores.CLIENTS.read_text().split()[0])
    ports = ports_of(3 * worker_stores.SERIES)
    assert max(ports) + 2 + 1000 < lowest_of_clients
    for world, port in enumerate(ports):
        others = ports[max(0, world - KEPT - 1) : world + 2]  # the next one's may be open already
        assert not {port + k for k in range(1, 1003)} & set(others)


def test_a_port_that_somebody_has_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    series = worker_stores._series()
    monkeypatch.setattr(worker_stores, "_series", series.copy)
    with socket.create_server(("127.0.0.1", series[1])):
        assert ports_of(3) == [series[0], series[2], series[3]]


@pytest.mark.parametrize("clients", ["1024\t65535\n", None])
def test_where_all_ports_are_the_clients_any_free_one_will_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clients: str | None
) -> None:
    if clients is not None:
        (tmp_path / "range").write_text(clients)
    monkeypatch.setattr(worker_stores, "CLIENTS", tmp_path / "range")
    assert len(set(ports_of(3))) == 3


def test_a_host_may_be_without_its_address_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    listening, tried = worker_stores.listening, []

    def returns_late(host: str, port: int = 0) -> socket.socket:
        tried.append(host)
        if len(tried) < 3:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return listening(host, port)

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
