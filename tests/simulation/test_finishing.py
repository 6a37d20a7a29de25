"""Jobs whose nodes finish one after the other, and go: by themselves, by a signal, or with their hosts."""

from __future__ import annotations

import random

import pytest

from simulation.checkers import Checker, all_checkers, sealed_anew
from simulation.cluster import Cluster, Node
from simulation.conditions import Timing
from simulation.mutants import those
from simulation.mutants.mutant import Mutant
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.model import JobSettings, Phase, Round
from softrun.agent.protocol.observations import Signalled
from softrun.policies import load_policy

SEEDS = 60
KNOWN_S = 1.5
"""Within this time who has finished is in the record, whoever leads."""
SIGTERM = 15


class NobodyMissesTheFinished(Checker):
    """No world follows the first one, and nobody's worker is told to leave it or to end."""

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if sealed_anew(before, after):
            self.demand(after.number == 1, f"round {after.number} follows, although nobody unfinished is gone")
        again = before is not None and before.number > 0 and after.phase is Phase.OPEN
        self.demand(not again, f"version {after.version} waits for others, although nobody unfinished is gone")

    def effect(self, node: Node, effect: do.Effect) -> None:
        self.demand(not isinstance(effect, do.SignalWorker), f"{node.name} signals a worker")


def run(seed: int) -> None:
    rng = random.Random(seed)
    policy = rng.choice(("hard", "soft"))
    count = rng.randint(2, 6)
    lease_s = rng.choice((None, None, 5.0))
    checker = NobodyMissesTheFinished()
    timing = Timing(link=(0.001, 0.02), store=(0.001, 0.05))
    cluster = Cluster(rng, timing, watchers=[*all_checkers(), checker], lease_s=lease_s)
    job = JobSettings(count, count, policy, "no-replace")
    for i in range(count):
        config = EngineConfig(job, f"n{i}", f"host-{i}", 7000, "trainer", 2, 0)
        node = cluster.start(config, load_policy(policy), offset=rng.uniform(0.0, 1000.0))
        node.never_asks = True  # who asks for a world says when its peers are gone
        cluster.run_until(cluster.now + rng.uniform(0.0, 0.3))
    cluster.run_until(cluster.now + 5.0)
    order = list(cluster.nodes.values())
    rng.shuffle(order)
    for node in order:
        for process in node.running:
            cluster.workers.end(process, 0)
            cluster.run_until(cluster.now + rng.choice((0.0, 0.1)))
        if rng.random() < 0.5:
            cluster.run_until(cluster.now + KNOWN_S + rng.uniform(0.0, 1.0))
            _go(cluster, node, rng, kept=lease_s is None)
            cluster.run_until(cluster.now + rng.choice((0.0, 3.0)))
    cluster.run_until(cluster.now + 20.0)
    record = cluster.store.round
    checker.demand(record is not None and record.phase is Phase.CLOSED, "the job does not end")
    checker.demand(record is not None and not record.outcome, "the job fails")


def _go(cluster: Cluster, node: Node, rng: random.Random, *, kept: bool) -> None:
    """`kept`: the agents keep the record, so most of those that have a vote have to be there."""
    way = rng.choice(("by a signal", "killed", "with its host"))
    record = cluster.store.round
    assert record is not None
    up = sum(other.alive for other in cluster.nodes.values())
    if not node.alive or (kept and 2 * (up - 1) <= len(record.voters)):
        return
    if way == "by a signal":
        cluster.deliver(node, Signalled(SIGTERM))
    else:
        cluster.crash(node, silent=way == "with its host")


def test_who_has_finished_may_go() -> None:
    for seed in range(SEEDS):
        run(seed)


@pytest.mark.parametrize("mutant", those("whose nodes finish and go"), ids=lambda mutant: mutant.name)
def test_mutant_dies(mutant: Mutant) -> None:
    mutant.must_die(run, SEEDS)
