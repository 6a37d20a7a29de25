"""How a job ends in which workers finish and fail, and agents are told to end and are killed, in any order.

`Model` says what must come of it, in as few words as can be: who works, who was started how often, with what each
launcher has ended. It knows nothing of how agents agree. The simulation is held against it
(`tests/simulation/test_endings.py`), and so are real jobs (`scripts/soak --endings`).
"""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

HARD, NO_REPLACE, REPLACE, RECORD = "hard", "no-replace", "replace", "record"
KILLED = -9


class Worker(NamedTuple):
    """A place for a process on a node."""

    node: int
    local_rank: int


class Job(NamedTuple):
    """What is launched."""

    policy: str
    least: int
    restarts: int
    nodes: int
    nproc: int


class Model:
    """What the events of a job lead to. `code` has the exit codes of the launchers that have ended."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.code: dict[int, int] = {}
        self.works: set[Worker] = set()
        self.done: set[Worker] = set()
        self.failed: set[Worker] = set()
        self.starts: Counter[Worker] = Counter()
        self._spent: Counter[int | Worker] = Counter()
        self._start(self._workers(range(job.nodes)))

    def event(self, what: str, at: Worker) -> None:
        """`finish` or `fail`, of a worker, `end` or `kill`, of its node."""
        if what == "finish":
            self.works.remove(at)
            self.done.add(at)
        elif what == "fail":
            self.works.remove(at)
            self._fail(at)
        else:
            finished = self.has_finished(at.node)
            self._leaves(at.node, KILLED if what == "kill" else self._code(at.node) if finished else 1)
            if not finished and self.job.policy == HARD:
                self._begin_again()
        if self.done and not self.works:
            self._end(0)

    def has_finished(self, node: int) -> bool:
        here = {*self._workers([node])}
        return here <= self.done | self.failed and bool(here & self.done)

    @property
    def waits(self) -> bool:
        """Whether too few are left: the workers of the others are stopped, or paused."""
        left = [node for node in range(self.job.nodes) if node in self.up or self.has_finished(node)]
        return not self.works or len(left) < self.job.least

    @property
    def up(self) -> list[int]:
        return [node for node in range(self.job.nodes) if node not in self.code]

    def _fail(self, at: Worker) -> None:
        here = self._workers([at.node])
        through = any(self.has_finished(node) for node in range(self.job.nodes))
        through |= bool(self.done & {*here}) and (self.job.policy == NO_REPLACE or len(self.up) == 1)
        self._spent[at if self.job.policy == REPLACE else at.node] += 1
        spent = self._spent[at if self.job.policy == REPLACE else at.node] > self.job.restarts
        if self.job.policy == HARD:
            self._end(1) if spent else self._begin_again()
        elif self.job.policy == RECORD or (self.job.policy == REPLACE and through):
            self.failed.add(at)
            if self.failed >= {*here}:
                self._leaves(at.node, 1)
        elif spent or through:
            self._leaves(at.node, 1)
        else:
            self._start([at] if self.job.policy == REPLACE else here)

    def _begin_again(self) -> None:
        """All of them, in a world of the nodes that are there; those too few wait, unless nobody can come any more."""
        gone = any(self.has_finished(node) for node in self.code)
        self.done.clear()
        self.works.clear()
        if len(self.up) >= self.job.least:
            self._start(self._workers(self.up))
        elif gone:
            self._end(1)

    def _workers(self, nodes: range | list[int]) -> list[Worker]:
        return [Worker(node, local_rank) for node in nodes for local_rank in range(self.job.nproc)]

    def _start(self, workers: list[Worker]) -> None:
        self.works.update(workers)
        self.starts.update(workers)

    def _leaves(self, node: int, code: int) -> None:
        self.code[node] = code
        self.works.difference_update(self._workers([node]))

    def _end(self, code: int) -> None:
        for node in self.up:
            self._leaves(node, code or self._code(node))

    def _code(self, node: int) -> int:
        """Of a node that has finished."""
        return int(self.job.policy == REPLACE and bool(self.failed & {*self._workers([node])}))


def draw_job(rng: random.Random) -> Job:
    policy = rng.choice((HARD, HARD, NO_REPLACE, REPLACE, RECORD))
    return Job(policy, least=rng.randint(1, 3), restarts=rng.randint(0, 2), nodes=3, nproc=rng.randint(1, 2))


def draw_event(rng: random.Random, model: Model) -> tuple[str, Worker]:
    """The next event of a job that has not ended."""
    kinds = ("end", "kill") if model.waits else ("end", "kill", *("finish",) * 4, *("fail",) * 3)
    what = rng.choice(kinds)
    if what in ("finish", "fail"):
        return what, rng.choice(sorted(model.works))
    return what, Worker(rng.choice(model.up), 0)
