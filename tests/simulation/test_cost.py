"""What joining costs: operations on the store and messages between agents, counted, for more and more nodes."""

from __future__ import annotations

import random

import pytest

from simulation.cluster import Cluster, Node, Watcher
from softrun.agent import effects as do
from softrun.agent.engine import EngineConfig
from softrun.agent.model import JobSettings, Phase
from softrun.policies import load_policy


class Counter(Watcher):
    """Operations that agents ask of the store, and messages that they send to one other agent."""

    def __init__(self) -> None:
        self.store = 0
        self.messages = 0

    def effect(self, node: Node, effect: do.Effect) -> None:
        if isinstance(effect, do.Propose | do.BeatAsLeader | do.ReadLeaderBeat):
            self.store += 1
        elif isinstance(effect, do.Say):
            self.messages += 1 if effect.node is not None else len(node.inbound)


def join(nodes: int) -> tuple[Cluster, Counter]:
    """That many agents start at once; ends when all are in one world."""
    counter = Counter()
    cluster = Cluster(random.Random(nodes), watchers=[counter])
    job = JobSettings(nodes, nodes, "soft", "no-replace")
    for i in range(nodes):
        config = EngineConfig(job, f"node-{i}", f"host-{i}", 7000, "trainer", 1, 0)
        cluster.start(config, load_policy("soft"))
    while cluster.store.round is None or cluster.store.round.phase is not Phase.SEALED:
        cluster.run_until(cluster.now + 0.01)
        assert cluster.now < 30
    assert len(cluster.store.round.members) == nodes
    return cluster, counter


@pytest.mark.parametrize("nodes", [16, 64, 256])
def test_joining_costs_a_few_operations_for_each_node(nodes: int) -> None:
    cluster, counter = join(nodes)
    # Each tries to make the record, since there is none yet; one seals it; the rest are beats of a second.
    assert counter.store <= 3 * nodes + 5
    assert counter.messages <= 8 * nodes
    assert cluster.store.writes == 2, "the record is made, and sealed"


def test_a_loss_costs_one_write_however_many_there_are() -> None:
    cluster, _ = join(64)
    before = cluster.store.writes
    cluster.crash(cluster.nodes["node-17"])
    cluster.run_until(cluster.now + 1.0)
    assert cluster.store.writes == before + 1
