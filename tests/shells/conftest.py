"""Stores in a real etcd, and what softrun warns of."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator

import pytest
from etcd_stores import Open

from local_etcd import LocalEtcd
from softrun.agent.store.etcd import EtcdStore
from softrun.agent.store.etcd_client import EtcdAccess, parse_endpoints


@pytest.fixture
def opened() -> Iterator[list[EtcdStore]]:
    stores: list[EtcdStore] = []
    yield stores
    for store in stores:
        store.close()


@pytest.fixture
def open_at(opened: list[EtcdStore]) -> Open:
    """Each call opens the same job's store for another agent."""
    job = uuid.uuid4().hex

    def open_at(access: EtcdAccess | LocalEtcd, node: str = "", lease_s: float = 5, timeout_s: float = 10) -> EtcdStore:
        if isinstance(access, LocalEtcd):
            access = EtcdAccess(parse_endpoints(access.endpoint))
        store = EtcdStore(job, node or f"node{len(opened)}", access, lease_s, timeout_s)
        opened.append(store)
        return store

    return open_at


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What softrun warns of, even where a command line has been run before."""
    monkeypatch.setattr(logging.getLogger("softrun"), "propagate", True)
    return caplog
