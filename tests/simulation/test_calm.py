"""Jobs that nothing befalls: no worker ever waits for time from its agent, and no world follows the first whole one."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from simulation.checkers import Checker, all_checkers, sealed_anew
from simulation.cluster import Cluster, Node
from simulation.conditions import Range, Timing
from simulation.mutants import those
from simulation.mutants.mutant import Mutant
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.protocol.effects import Effect
from softrun.agent.protocol.model import JobSettings, Round
from softrun.agent.protocol.observations import Observation
from softrun.agent.store.settings import LEAST_BEATS
from softrun.policies import load_policy

BEATS = 40
SEEDS = 3


class Calm(NamedTuple):
    nodes: int
    interval_s: float = 0.25
    link: Range = (0.001, 0.02)
    lease_s: float | None = None
    """Of the store; None: the agents keep the record."""


CASES = {
    "a pair": Calm(2),
    "four nodes": Calm(4),
    "eight nodes": Calm(8),
    "beats as in the largest job, on a slow network": Calm(6, 1.8, (0.01, 0.2)),
    "etcd": Calm(4, lease_s=20.0),
    "etcd, whose leases are shorter than a beat": Calm(3, 8.0, lease_s=2.0),
}


class NobodyWaits(Checker):
    """The time that an agent gives its workers is moved on before it is over, once all are in one world."""

    def __init__(self, cluster: Cluster, nodes: int, interval_s: float) -> None:
        self._cluster, self._nodes, self._interval_s = cluster, nodes, interval_s
        self._whole_at: float | None = None
        cluster.listeners.append(self._look)

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if sealed_anew(before, after):
            self.demand(self._whole_at is None, f"round {after.number} follows, although nothing has happened")
            self._whole_at = self.cluster.now if len(after.members) == self._nodes else None

    def _look(self, node: Node, seen: Observation, effects: list[Effect]) -> None:
        now = self._cluster.now
        if self._whole_at is not None and now > self._whole_at + 3 * self._interval_s:
            self.demand(not node.holds(now), f"the workers of {node.name} wait at {now:.3f} s")


def run(case: Calm, seed: int) -> None:
    rng = random.Random(seed)
    timing = Timing(link=case.link, store=(0.001, 0.1))
    cluster = Cluster(rng, timing, watchers=all_checkers(), lease_s=case.lease_s)
    watcher = NobodyWaits(cluster, case.nodes, case.interval_s)
    watcher.cluster = cluster
    cluster.watchers.append(watcher)
    job = JobSettings(case.nodes, case.nodes, "soft", "no-replace")
    for i in range(case.nodes):
        config = EngineConfig(
            job,
            f"n{i}",
            f"host-{i}",
            7000,
            "trainer",
            1,
            3,
            beat_interval_s=case.interval_s,
            beat_tolerance_s=case.interval_s * LEAST_BEATS,
        )
        cluster.start(config, load_policy("soft"), offset=rng.uniform(0.0, 1000.0))
        cluster.run_until(cluster.now + rng.uniform(0.0, case.interval_s))
    cluster.run_until(cluster.now + BEATS * case.interval_s)
    watcher.demand(watcher._whole_at is not None, "there was no world of all")


@pytest.mark.parametrize("name", CASES)
def test_nobody_waits_where_nothing_happens(name: str) -> None:
    for seed in range(SEEDS):
        run(CASES[name], seed)


@pytest.mark.parametrize("mutant", those("where nothing happens"), ids=lambda mutant: mutant.name)
def test_mutant_dies(mutant: Mutant) -> None:
    cases = [*CASES.values()]
    mutant.must_die(lambda seed: run(cases[seed % len(cases)], seed), 30)
