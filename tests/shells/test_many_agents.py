"""Many agents on a real store: what joining costs, counted."""

from __future__ import annotations

import time

import pytest

from light_agents import LightC10dStore, Tally, count_calls, end_all, join_all, until_told
from local_cluster import free_port
from local_etcd import LocalEtcd
from softrun.agent.effects import Outcome
from softrun.agent.etcd_client import EtcdAccess, EtcdClient
from softrun.agent.store_etcd import EtcdStore


class Counted(EtcdClient):
    """Its calls are counted."""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[EtcdClient]:
    monkeypatch.setattr("softrun.agent.store_etcd.EtcdClient", Counted)
    monkeypatch.setattr(Counted, "_until_answered", EtcdClient._until_answered, raising=False)
    return Counted


@pytest.mark.etcd
@pytest.mark.parametrize("nodes", [16, 64])
def test_joining_in_etcd_costs_a_few_calls_for_each_node(
    etcd: LocalEtcd, counted: type[EtcdClient], nodes: int
) -> None:
    calls = count_calls(counted)
    access = EtcdAccess((etcd.endpoint,))
    agents, _ = join_all(nodes, lambda node: EtcdStore(f"many-{nodes}", node, access, 15, 30))
    # Connect, lease, key, renewal, two reads, the attempt to make the record, and which lease is missing; few beats.
    assert calls() <= 9 * nodes + 20
    end_all(agents)
    assert {agent.result.outcome for agent in agents if agent.result} == {Outcome.SIGNALLED}


@pytest.mark.parametrize("nodes", [16, 48])
def test_in_the_embedded_store_a_start_costs_a_few_operations_for_each_node_and_a_loss_one_change(nodes: int) -> None:
    port, tally = free_port(), Tally()
    agents, _ = join_all(nodes, lambda _: LightC10dStore(tally, "many", "127.0.0.1", port, 30.0), may_go=1)
    started = tally.counts()
    # Counted in, two looks for the newest record, two waits, the attempt to make the record; few beats.
    assert started.total() <= 15 * nodes + 20
    victim = next(agent for agent in agents if agent.rank and not agent.hosts_store)
    victim.die()
    agents.remove(victim)
    until_told(agents, nodes - 1, time.monotonic() + 30.0)
    lost = tally.counts() - started
    assert lost["compare_set record"] == lost["set head"] == 1
    assert sum(n for what, n in lost.items() if "beats" not in what) <= 6 * nodes
    for agent in agents:
        agent.die()
        agent.join(10)
