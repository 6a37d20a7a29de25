"""Many agents on a real store: what joining costs, counted."""

from __future__ import annotations

from typing import Any, cast

import pytest
from bench_many_nodes import measure

from light_agents import count_calls, end_all, join_all
from local_etcd import LocalEtcd
from softrun.agent.protocol.effects import Outcome
from softrun.agent.store.etcd import EtcdStore
from softrun.agent.store.etcd_client import EtcdAccess, EtcdClient


class Counted(EtcdClient):
    """Its calls are counted."""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[EtcdClient]:
    monkeypatch.setattr("softrun.agent.store.etcd.EtcdClient", Counted)
    monkeypatch.setattr(Counted, "_ask", EtcdClient._ask, raising=False)
    return Counted


@pytest.mark.etcd
@pytest.mark.parametrize("nodes", [16, 64])
def test_joining_in_etcd_costs_a_few_calls_for_each_node(
    etcd: LocalEtcd, counted: type[EtcdClient], nodes: int
) -> None:
    calls = count_calls(counted)
    access = EtcdAccess((etcd.endpoint,))
    agents, _ = join_all(nodes, lambda node: EtcdStore(f"many-{nodes}", node, access, 15, 30))
    # Lease, key, reading the record, which lease is missing, the attempt to make the record, and, for those who come
    # first, the job's lease and another attempt; few renewals.
    assert calls() <= 8 * nodes + 20
    end_all(agents)
    assert {agent.result.outcome for agent in agents if agent.result} == {Outcome.SIGNALLED}


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [16, 48])
def test_in_the_embedded_store_a_start_costs_a_few_operations_for_each_node_and_a_loss_one_change(nodes: int) -> None:
    record = measure("c10d", nodes)  # in a process of its own: connections to a TCPStore cannot be given back
    assert "failed" not in record, record
    start, loss = (cast("dict[str, Any]", record[what]) for what in ("start", "loss"))
    # Counted in, two looks for the newest record, two waits, the attempt to make the record.
    assert start["operations"] <= 15 * nodes + 20
    assert loss["swaps"] == loss["by_name"]["set head"] == loss["writes"] == 1
    assert loss["operations"] <= 6 * nodes


@pytest.mark.slow
@pytest.mark.etcd
def test_in_etcd_a_start_costs_a_few_operations_for_each_node_and_a_loss_one_change() -> None:
    record = measure("etcd", 48)
    assert "failed" not in record, record
    start, loss, leave = (cast("dict[str, Any]", record[what]) for what in ("start", "loss", "leave"))
    assert start["operations"] <= 8 * 48 + 20
    assert start["by_name"]["Put members"] == 48
    for cost in (loss, leave):
        assert 1 <= cost["swaps"] <= 2, "one, unless its answer was late"
    assert (loss["writes"], leave["writes"]) == (0, 1), "who leaves gives its lease back"
    assert max(loss["operations"], leave["operations"]) <= 4
