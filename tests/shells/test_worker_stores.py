from __future__ import annotations

from queue import SimpleQueue

from local_cluster import listens
from softrun.agent.protocol.observations import Observation, WorkerStoreOpened
from softrun.agent.workers.stores import KEPT, WorkerStores


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
