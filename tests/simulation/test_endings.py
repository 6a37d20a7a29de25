"""Simulated jobs end as a model says that knows nothing of how agents agree (`storm.endings`)."""

from __future__ import annotations

import random

import pytest

from simulation.checkers import Checker, all_checkers
from simulation.cluster import Cluster
from simulation.mutants import those
from simulation.mutants.mutant import Mutant
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.model import JobSettings
from softrun.agent.protocol.observations import Signalled
from softrun.policies import WorkerFailure, load_policy
from storm.endings import HARD, KILLED, Model, Worker, draw_event, draw_job

SEEDS = 60
AT_ONCE = 20
"""Seeds of one test."""
SETTLES_S = 60.0
"""Longer than reapers tell how an agent has ended."""
SIGTERM = 15


class EndsAsTheModelSays(Checker):
    """After each event the same work, were started as often, and have ended with the same exit codes."""

    def compare(self, model: Model, story: list[str]) -> None:
        nodes = {int(name): node for name, node in self.cluster.nodes.items()}
        processes = {Worker(at, p.local_rank): p for at, node in nodes.items() for p in node.processes.values()}
        codes = {at: _code(node.result) for at, node in nodes.items() if not node.alive}
        works = {worker for worker, process in processes.items() if process.alive}
        starts = {worker: process.launch for worker, process in processes.items()}
        told = "; ".join(story)
        self.demand(codes == model.code, f"{told}: the nodes' exit codes are {codes}, not {model.code}")
        self.demand(works == model.works, f"{told}: at work are {sorted(works)}, not {sorted(model.works)}")
        self.demand(starts == model.starts, f"{told}: they were started {starts}, not {dict(model.starts)}")


def _code(result: do.Result | None) -> int:
    return KILLED if result is None else int(result.outcome is not do.Outcome.SUCCEEDED)


def run(seed: int) -> None:
    rng = random.Random(seed)
    job = draw_job(rng)
    model, checker = Model(job), EndsAsTheModelSays()
    cluster = Cluster(rng, watchers=[*all_checkers(), checker])
    policy, failure = ("hard", "no-replace") if job.policy == HARD else ("soft", job.policy)
    settings = JobSettings(job.least, job.nodes, policy, failure)
    for node in range(job.nodes):
        config = EngineConfig(settings, f"{node}", f"host-{node}", 7000, "trainer", job.nproc, job.restarts)
        cluster.start(config, load_policy(policy, WorkerFailure(failure)))
        cluster.run_until(cluster.now + rng.uniform(0.0, 0.1))
    cluster.run_until(SETTLES_S)
    story = [str(job)]
    checker.compare(model, story)
    while model.up:
        what, at = draw_event(rng, model)
        story.append(f"{what} {at.node}/{at.local_rank}")
        befall(cluster, what, at)
        model.event(what, at)
        cluster.run_until(cluster.now + SETTLES_S)
        checker.compare(model, story)


def befall(cluster: Cluster, what: str, at: Worker) -> None:
    node = cluster.nodes[f"{at.node}"]
    match what:
        case "finish":
            node.processes[at.local_rank].leaving = True
            cluster.workers.end(node.processes[at.local_rank], 0)
        case "fail":
            cluster.workers.end(node.processes[at.local_rank], 1)
        case "end":
            cluster.deliver(node, Signalled(SIGTERM))
        case "kill":
            cluster.crash(node)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_jobs_end_as_the_model_says(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        run(seed)


@pytest.mark.parametrize("mutant", those("of any ending"), ids=lambda mutant: mutant.name)
def test_mutant_dies(mutant: Mutant) -> None:
    mutant.must_die(run, SEEDS)
