from __future__ import annotations

from queue import SimpleQueue

from local_cluster import listens
from softrun.agent.model import Address
from softrun.agent.observations import Observation, WorkerStoreOpened
from softrun.agent.worker_stores import KEPT, FixedWorkerStore, FreshWorkerStores


def test_the_last_ones_stay_for_workers_that_are_slow_to_begin() -> None:
    seen: SimpleQueue[Observation] = SimpleQueue()
    stores = FreshWorkerStores(seen.put)
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


def test_the_one_that_the_user_has_named_is_lent_again_and_again() -> None:
    seen: list[Observation] = []
    stores = FixedWorkerStore(Address("head", 29500), seen.append)
    stores.open()
    stores.close(29500)
    stores.open()
    assert seen == [WorkerStoreOpened(29500, "head")] * 2
