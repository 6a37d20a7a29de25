"""What befalls a job, and what that took from it. Each works on a job all of whose workers step, but for `scale_up`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from signal import SIGKILL, SIGSTOP, SIGTERM

from measuring import Record

from bench_suite.figures import around, gap, members, toll
from bench_suite.job import Job
from local_cluster import Node, send

BEFORE_S = 0.5
"""How much of the log before a fault is looked at."""
AFTER_S = 0.5
"""How long survivors are watched after they have stepped again."""


def worker_killed(job: Job, patience_s: float) -> Record:
    """The last rank, by SIGKILL."""
    steps = job.here.steps()
    victim = max((s for s in steps if s.round == steps[-1].round), key=lambda s: s.rank).pid
    staying = members(steps) - {victim}
    at = time.monotonic()
    send(victim, SIGKILL)
    return survivors(job, at, staying, patience_s) | {"all_back_s": all_back(job, at, patience_s)}


def node_killed(job: Job, patience_s: float) -> Record:
    """Its launcher and all that it has started, by SIGKILL, as a power cut does."""
    return node_fault(job, patience_s, Node.kill)


def node_stopped(job: Job, patience_s: float) -> Record:
    """Its launcher and all that it has started, by SIGSTOP, as a machine that hangs."""
    return node_fault(job, patience_s, lambda node: node.signal_family(SIGSTOP))


def agent_killed(job: Job, patience_s: float) -> Record:
    """The launcher alone, by SIGKILL."""
    return node_fault(job, patience_s, lambda node: node.signal(SIGKILL))


def leave(job: Job, patience_s: float) -> Record:
    """SIGTERM to the launcher, as when a node is drained."""
    return node_fault(job, patience_s, lambda node: node.signal(SIGTERM))


def come_back(job: Job, patience_s: float) -> Record:
    """A node is killed and started again at once."""
    staying = survivors_of(job, job.last_node())
    at = job.last_node().kill()
    job.start_node(max(job.nodes))
    return {"all_back_s": all_back(job, at, patience_s), **taken(job, at, staying)}


def scale_up(job: Job, patience_s: float) -> Record:
    """Another node joins those that step."""
    staying = members(job.here.steps())
    at = job.start_node(len(job.nodes))
    return {"all_step_s": all_back(job, at, patience_s), **taken(job, at, staying)}


RUN: dict[str, Callable[[Job, float], Record]] = {
    run.__name__: run for run in (worker_killed, scale_up, node_killed, come_back, agent_killed, node_stopped, leave)
}


def node_fault(job: Job, patience_s: float, strike: Callable[[Node], float]) -> Record:
    victim = job.last_node()
    staying = survivors_of(job, victim)
    return survivors(job, strike(victim), staying, patience_s)


def survivors_of(job: Job, victim: Node) -> set[int]:
    staying = members(job.here.steps()) - set(victim.family())
    if len(staying) != job.shape.one_less:
        raise AssertionError(f"a fault for a job that is not whole: {len(staying)} workers are elsewhere")
    return staying


def survivors(job: Job, at: float, staying: Collection[int], patience_s: float) -> Record:
    """`gap_s`, and what the fault took from the survivors beside that time."""
    gap_s = job.next_step(lambda: gap(job.here.steps(), at, len(staying)), patience_s)
    return {"gap_s": gap_s, **taken(job, at, staying)}


def all_back(job: Job, at: float, patience_s: float) -> float:
    return job.wait_for("a step of all workers", lambda: gap(job.here.steps(), at, job.shape.all), patience_s)


def taken(job: Job, at: float, staying: Collection[int]) -> Record:
    time.sleep(AFTER_S)
    return {"survivors": len(staying), **asdict(toll(around(job.here.steps(), at, BEFORE_S), staying))}
