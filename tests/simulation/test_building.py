"""Workers that die while they build the groups of a world: the job comes to a step, or it ends, within a bound."""

from __future__ import annotations

import random

import pytest

from simulation.checkers import Checker, all_checkers, sealed_anew
from simulation.cluster import Cluster, Node
from simulation.conditions import Habits, Timing
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.effects import Outcome
from softrun.agent.protocol.model import JobSettings, Phase, Round
from softrun.agent.rendezvous.convergence import MOST_STEPLESS
from softrun.policies import WorkerFailure, load_policy

WITHIN_S = 15 * 60.0  # of virtual time: all waits of a row of worlds without a step take less
TIMING = Timing(worker_works=(0.05, 0.5), worker_ready=(0.05, 0.5))


class Worlds(Checker):
    """Counts them, and knows whether there was a step in one."""

    def __init__(self) -> None:
        self.count = 0
        self.worked = False

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        self.count += sealed_anew(before, after)

    def observed(self, node: Node, seen: saw.Observation) -> None:
        self.worked |= isinstance(seen, saw.WorkerSaid) and seen.status.worked > 0


def run(
    nodes: int, workers: int, failure: str, dies: float, restarts: int, seed: int, exits: float = 0.0
) -> tuple[Cluster, Worlds]:
    """Until a step was completed, or the job is over, or the time is."""
    worlds = Worlds()
    habits = Habits(dies_building=dies, exits_building=exits, coupled=True)
    cluster = Cluster(random.Random(seed), TIMING, habits, [*all_checkers(), worlds])
    job = JobSettings(1, nodes, "soft", failure)
    for i in range(nodes):
        config = EngineConfig(job, f"n{i}", f"host-{i}", 7000, "trainer", workers, restarts)
        cluster.start(config, load_policy("soft", WorkerFailure(failure)))
    while not worlds.worked and cluster.now < WITHIN_S and any(node.alive for node in cluster.nodes.values()):
        cluster.run_until(cluster.now + 0.1)
    return cluster, worlds


@pytest.mark.parametrize("failure", ["replace", "no-replace", "record"])
@pytest.mark.parametrize(("nodes", "workers"), [(1, 2), (2, 2)])
@pytest.mark.parametrize(("dies", "exits"), [(0.1, 0.0), (0.5, 0.0), (0.5, 0.3)])
def test_workers_that_die_while_building_come_to_a_step_or_an_end(
    dies: float, exits: float, nodes: int, workers: int, failure: str
) -> None:
    for seed in range(3):
        check(*run(nodes, workers, failure, dies, restarts=100, seed=seed, exits=exits))


@pytest.mark.slow
@pytest.mark.parametrize(("failure", "exits"), [("replace", 0.3), ("no-replace", 0.0), ("record", 0.0)])
def test_many_workers_that_die_while_building(failure: str, exits: float) -> None:
    check(*run(6, 3, failure, dies=0.5, restarts=100, seed=0, exits=exits))


def check(cluster: Cluster, worlds: Worlds) -> None:
    over = not any(node.alive for node in cluster.nodes.values())
    assert worlds.worked or over, f"neither after {cluster.now:.0f} s and {worlds.count} worlds"
    assert worlds.count <= MOST_STEPLESS + 1


def test_a_job_whose_workers_all_die_while_building_ends_with_the_cause() -> None:
    """Its restarts would last for a thousand more."""
    cluster, worlds = run(2, 2, "replace", dies=1.0, restarts=1000, seed=0)
    record = cluster.store.round
    assert record is not None
    assert record.phase is Phase.CLOSED
    assert f"{MOST_STEPLESS} worlds in a row ended before anybody completed a step" in record.outcome
    results = [node.result for node in cluster.nodes.values()]
    assert all(result is not None and result.outcome is Outcome.JOB_FAILED for result in results)
    assert worlds.count <= MOST_STEPLESS + 1
