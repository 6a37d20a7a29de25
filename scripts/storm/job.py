"""A job of real agents and workers that a seed draws, and what it is judged by: what all kinds of them have in common.

play(LedgerJob, seed, directory) -> Verdict        one job
soak(LedgerJob, seeds, jobs)                       many, a line for each
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from local_cluster import Begin, LocalCluster, begin, end_in_order_on_sigterm
from storm.run import StoppedError


@dataclass
class Verdict:
    """What became of a seed: the faults that struck, and what is wrong. `what` and `tally` are the job's own."""

    seed: int
    what: str = ""
    faults: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    tally: dict[str, int] = field(default_factory=dict)
    took_s: float = 0.0
    story: str = ""

    def __str__(self) -> str:
        what = f"{self.what}, {told(self.tally)}, {self.took_s:.0f} s"
        said = "; ".join(self.complaints) or "all is well"
        return f"seed {self.seed}: {what}: {', '.join(self.faults)}: {said}"


def told(tally: dict[str, int]) -> str:
    """Return it as a text."""
    return ", ".join(f"{number} {name}" for name, number in tally.items())


class Job(ABC):
    """What a seed draws. `draw` is what decides; what came of it is put into `verdict`."""

    NAME: ClassVar[str]

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self.cluster = cluster
        self.draw = random.Random(f"{self.NAME} {seed}")
        self.verdict = Verdict(seed)

    @abstractmethod
    def play(self) -> None:
        """Let all of it happen, and judge it."""

    def fails(self, error: Exception) -> None:
        """Put it among what is wrong."""
        self.verdict.complaints.append(f"{error}".splitlines()[0])

    def keep_story(self) -> None:
        """Of a job that is wrong, what its agents have said."""
        if self.verdict.complaints:
            self.verdict.story = "\n".join(f"--- {node.name}\n{node.output()[-6000:]}" for node in self.cluster.nodes)


def play(
    job: type[Job], seed: int, directory: Path, begin: Begin = begin, stop: threading.Event | None = None
) -> Verdict:
    """Run a job of this seed in a directory that is empty; `begin` starts its launchers.

    Raises StoppedError soon after `stop` was set.
    """

    def go_on() -> None:
        if stop is not None and stop.is_set():
            raise StoppedError

    began = time.monotonic()
    with LocalCluster(directory, begin=begin) as cluster:
        cluster.while_waiting = go_on
        played = job(cluster, seed)
        played.play()
    played.verdict.took_s = time.monotonic() - began
    return played.verdict


def soak(job: type[Job], seeds: range, jobs: int) -> int:
    """Run many, a line for each; 1 if one of them fails, else 0."""
    began = time.monotonic()
    verdicts, stop = [], threading.Event()
    end_in_order_on_sigterm()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for verdict in pool.map(lambda seed: _play_in_nursery(job, seed, stop), seeds):
                verdicts.append(verdict)
                print(verdict, flush=True)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    wrong = sum(bool(verdict.complaints) for verdict in verdicts)
    faults = sum(len(verdict.faults) for verdict in verdicts)
    names = dict.fromkeys(name for verdict in verdicts for name in verdict.tally)
    tally = {name: sum(verdict.tally.get(name, 0) for verdict in verdicts) for name in names}
    took_s = time.monotonic() - began
    print(f"{len(verdicts)} jobs in {took_s:.0f} s: {faults} faults, {told(tally)}; {wrong} are wrong")
    return 1 if wrong else 0


def replay(job: type[Job], seed: int) -> int:
    """Run one, and tell all of it."""
    verdict = _play_in_nursery(job, seed)
    print(f"{verdict}\n{verdict.story}")
    return 1 if verdict.complaints else 0


def _play_in_nursery(job: type[Job], seed: int, stop: threading.Event | None = None) -> Verdict:
    from nursery import Nursery

    with tempfile.TemporaryDirectory(prefix=f"{job.NAME}-{seed}-") as directory, Nursery() as nursery:
        return play(job, seed, Path(directory), nursery.begin, stop)
