"""One training on this machine: a few nodes of a launcher, each with its workers. A subclass for each launcher."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import TypeVar

from measuring import UNDISTURBED_S, given_up

from local_cluster import LocalCluster, Node, Step, listens, send

TRAINERS = Path(__file__).parent.parent / "trainers"
STEP_S = 0.005
STEADY_STEPS = 20
START_TIMEOUT_S = 120.0
LOOK_S = 0.05
_T = TypeVar("_T")


class DidNotHappenError(Exception):
    """What was waited for did not happen; the message is one line that says why."""


@dataclass(frozen=True)
class Shape:
    nodes: int
    workers: int
    """Of each node."""

    @property
    def all(self) -> int:
        return self.nodes * self.workers

    @property
    def one_less(self) -> int:
        """The workers that are left when a node is lost."""
        return self.all - self.workers


@dataclass(frozen=True)
class Work:
    """What the workers do in a step; see trainers/bench_steps.py."""

    kind: str = "sleep"
    step_s: float = STEP_S
    repetitions: int | None = None
    checkpoint: bool = True


class Job(ABC):
    """Its nodes have numbers; node 0 is never harmed, since in some launchers the job ends with it."""

    def __init__(self, here: LocalCluster, shape: Shape, work: Work) -> None:
        self.here = here
        self.shape = shape
        self.work = work
        self.nodes: dict[int, Node] = {}
        self._starts = 0

    @abstractmethod
    def command(self, number: int) -> tuple[list[str], dict[str, str]]:
        """Of the launcher of this node, and what it has in its environment beside."""

    def prepare(self) -> None:
        """Start what the job needs beside its nodes. Called once, before there is a node."""
        return

    def wait_for_first_node(self) -> None:
        """Until further nodes can be started."""
        return

    def start_node(self, number: int) -> float:
        """Start it, or start it again; returns when, by the monotonic clock."""
        if not self._starts:
            self.prepare()
        self._starts += 1
        command, env = self.command(number)
        # The log is the benchmark's own: softrun's must not cost what the others do not pay.
        log = {"SOFTRUN_STEP_LOG": "", "BENCH_STEP_LOG": str(self.here.steps_directory)}
        if self.work.repetitions:
            log["BENCH_REPETITIONS"] = str(self.work.repetitions)
        at = time.monotonic()
        self.nodes[number] = self.here.start(f"node-{number}-start-{self._starts}", command, log | env)
        return at

    def start(self, nodes: int) -> float:
        """Start so many nodes and wait until all step; returns when the first one was started."""
        at = self.start_node(0)
        if nodes > 1:
            self.wait_for_first_node()
        for number in range(1, nodes):
            self.start_node(number)
        self.wait_for_steps(nodes * self.shape.workers, 0.0, START_TIMEOUT_S)
        return at

    def restore(self, timeout_s: float) -> None:
        """Start the last node again, whatever is left of it, and wait until all step in one world."""
        self.last_node().kill()
        for pid in self.here.orphans():
            send(pid, SIGKILL)
        self.start_node(max(self.nodes))
        self.wait_for_steps(self.shape.all, time.monotonic(), timeout_s)

    def wait_for_steps(self, workers: int, after: float, timeout_s: float) -> None:
        """Until so many workers have made some steps in one world of their own."""
        what = f"some steps of all {workers} workers"
        self.wait_for(what, lambda: in_steady_state(self.here.steps(), after, workers), timeout_s)

    def wait_for_port(self, port: int) -> None:
        """Until somebody listens there."""
        self.wait_for(f"somebody listens at port {port}", lambda: listens(port) or None, START_TIMEOUT_S)

    def last_node(self) -> Node:
        return self.nodes[max(self.nodes)]

    def next_step(self, gap: Callable[[], float | None], patience_s: float) -> float:
        """Wait for the survivors' next step after a fault; `gap` measures it by the steps' own times."""
        time.sleep(UNDISTURBED_S)
        return self.wait_for("the survivors' next step", gap, patience_s)

    def wait_for(self, what: str, figure: Callable[[], _T | None], timeout_s: float) -> _T:
        """Ask for a figure until there is one. Raises DidNotHappenError, also when all launchers have ended."""
        deadline = time.monotonic() + timeout_s
        while (answer := figure()) is None:
            if given_up.is_set():
                raise DidNotHappenError(f"given up: {what}")
            if self.nodes and all(node.process.poll() is not None for node in self.nodes.values()):
                raise DidNotHappenError(f"all launchers have ended before {what}")
            if time.monotonic() > deadline:
                raise DidNotHappenError(f"not within {timeout_s:g} s: {what}")
            time.sleep(LOOK_S)
        return answer


def in_steady_state(steps: Sequence[Step], after: float, workers: int) -> bool | None:
    """Whether so many workers have made STEADY_STEPS after `after` in the last world, which is of just that size."""
    last = max((s.round for s in steps), default=0)
    made = Counter(s.pid for s in steps if s.round == last and s.world_size == workers and s.mono > after)
    return len([pid for pid, count in made.items() if count >= STEADY_STEPS]) == workers or None
