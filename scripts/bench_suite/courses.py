"""Courses: what is measured of one job, one thing after the other, so that not every fault costs a start.

If a job does not come back from a fault, the course goes on with a new job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial

from measuring import Record

from bench_suite.faults import RUN, worker_killed
from bench_suite.figures import first_of_all
from bench_suite.job import DidNotHappenError, Job, Shape
from bench_suite.systems import OF_NODES, OF_RANKS, System

NODES = Shape(nodes=3, workers=2)
RANKS = Shape(nodes=1, workers=4)
PAIR = Shape(nodes=1, workers=2)
LEAVE_IT_WHOLE = ("scale_up", "come_back")


def course(system: System, measures: Collection[str]) -> Generator[Record, None, None]:
    """A record for each of these measures that means something for the system."""
    if system.take:
        for measure in (measure for measure in measures if measure in system.measures):
            yield {**system.take(measure, system.patience_s), "measure": measure, "system": system.name}
        return
    for run, own in ((of_ranks, OF_RANKS), (of_nodes, OF_NODES)):
        for record in run(system, [measure for measure in own if measure in measures and measure in system.measures]):
            yield {**record, "system": system.name}


def of_ranks(system: System, measures: Sequence[str]) -> Iterator[Record]:
    """One node. Its cold start is that of a pair, too."""
    if not measures:
        return
    pair: Record = {}
    if "cold_start" in measures:
        with system.job(PAIR) as job:
            pair = attempt("cold_start", partial(cold_start, job))
    with system.job(RANKS) as job:
        ranks = attempt("cold_start", partial(cold_start, job))
        if "cold_start" in measures:
            yield {**pair, **ranks}
        if "worker_killed" in measures:
            yield (
                ranks if "failed" in ranks else attempt("worker_killed", partial(worker_killed, job, system.patience_s))
            )


def cold_start(job: Job) -> Record:
    """From the launch until all workers have made a step: `first_step_of_<workers>_s`."""
    at = job.start(1)
    return {f"first_step_of_{job.shape.all}_s": first_of_all(job.here.steps(), at, job.shape.all)}


def of_nodes(system: System, measures: Sequence[str]) -> Iterator[Record]:
    """Three nodes, of which the last is harmed and started again."""
    waiting = deque(measures)
    while waiting:
        with system.job(NODES) as job:
            started = attempt(waiting[0], partial(start, job, NODES.nodes - (waiting[0] == "scale_up")))
            if "failed" in started:
                yield from (untried(measure, started) for measure in waiting)
                return
            while waiting:
                measure = waiting.popleft()
                record = attempt(measure, partial(RUN[measure], job, system.patience_s))
                yield record
                if "failed" in record or not (waiting and is_whole_after(measure, job, system.patience_s)):
                    break


def start(job: Job, nodes: int) -> Record:
    job.start(nodes)
    return {}


def is_whole_after(measure: str, job: Job, patience_s: float) -> bool:
    return measure in LEAVE_IT_WHOLE or "failed" not in attempt(measure, partial(restore, job, patience_s))


def restore(job: Job, patience_s: float) -> Record:
    job.restore(patience_s)
    return {}


def attempt(measure: str, take: Callable[[], Record]) -> Record:
    try:
        return {"measure": measure, **take()}
    except DidNotHappenError as why:
        return {"measure": measure, "failed": str(why)}


def untried(measure: str, start: Record) -> Record:
    return {"measure": measure, "untried": f"it did not start: {start['failed']}"}
