"""Many agents, which keep the record themselves or in etcd: what joining costs, and a loss, counted."""

from __future__ import annotations

from typing import Any, cast

import pytest
from bench_many_nodes import measure

from light_agents import count_calls, end_all, join_all
from local_etcd import LocalEtcd
from softrun.agent.protocol.effects import Outcome
from softrun.agent.store.etcd import EtcdStore
from softrun.agent.store.etcd_client import EtcdAccess, EtcdClient, _load_etcd3


class Counted(EtcdClient):
    """Its calls are counted."""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[EtcdClient]:
    _load_etcd3()  # CPython 3.11 cannot compile in many threads at once (gh-106905)
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
def test_agents_that_keep_the_record_send_a_few_messages_for_each_node_and_the_first_may_die(nodes: int) -> None:
    record = measure("c10d", nodes)
    assert "failed" not in record, record
    start, loss, leader_loss = (cast("dict[str, Any]", record[what]) for what in ("start", "loss", "leader_loss"))
    # Greeted, and shown the record; hello, and what each end reports; then the agreement.
    assert start["messages"] <= 13 * nodes
    assert loss["by_name"]["message accept"] == nodes - 2, "one change, agreed on by those that are left"
    assert loss["messages"] <= 4 * nodes
    assert leader_loss["by_name"]["message accept"] == nodes - 2
    # A probe, a greeting and its answer; hello, with a beat and a promise, and a report; then the agreement: 8. On a
    # busy machine some are asked twice.
    assert leader_loss["messages"] <= 12 * nodes
    beats = 3 + 2 * leader_loss["seconds"]
    assert leader_loss["by_name"]["message beat"] <= beats * nodes, "the new leader gets its lease, and grants others"
    assert start["operations"] == loss["operations"] == leader_loss["operations"] == 0, "there is no store"


@pytest.mark.slow
@pytest.mark.etcd
def test_in_etcd_a_start_costs_a_few_operations_for_each_node_and_a_loss_one_change() -> None:
    record = measure("etcd", 48)
    assert "failed" not in record, record
    start, loss, leave, leader_loss = (
        cast("dict[str, Any]", record[what]) for what in ("start", "loss", "leave", "leader_loss")
    )
    assert start["operations"] <= 8 * 48 + 20
    assert start["by_name"]["Put members"] == 48
    for cost in (loss, leave, leader_loss):
        assert 1 <= cost["swaps"] <= 2, "one, unless its answer was late"
        assert cost["operations"] <= 4
    assert (loss["writes"], leave["writes"]) == (0, 1), "who leaves gives its lease back"
