"""Histories of a service that is right, of any length: workers call in blocks; some die, are evicted, start again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Worker:
    lives: int = 0
    calls: int = 0
    phase: str = "absent"
    vote: str | None = None
    block: dict[int, tuple[int, int]] = field(default_factory=dict)  # (life, call) of each member


class Service:
    """A run, round by round. With a rate of 0 nobody dies."""

    def __init__(self, seed: int, workers: int, events: int, death_rate: float = 0.02) -> None:
        self.random = random.Random(seed)
        self.rate = death_rate
        self.workers = [_Worker() for _ in range(workers)]
        self.events: list[dict[str, Any]] = []
        self.round = 0
        for worker in range(workers):
            self._start(worker)
        while len(self.events) < events:
            self._call()
            self._decide()

    def history(self) -> dict[str, Any]:
        return {"procs": list(range(len(self.workers))), "events": self.events}

    def _record(self, worker: int, kind: str, **fields: Any) -> None:
        kept = {name: value for name, value in fields.items() if value is not None}
        self.events.append({"t": len(self.events), "p": worker, "e": kind, **kept})

    def _inc(self, worker: int) -> str:
        return f"{worker}.{self.workers[worker].lives}"

    def _start(self, worker: int) -> None:
        self.workers[worker] = _Worker(self.workers[worker].lives + 1, phase="idle")
        self._record(worker, "start", inc=self._inc(worker))

    def _may_end(self, worker: int) -> bool:
        ends = self.random.random() < self.rate
        if ends:
            self._record(worker, self.random.choice(["fail", "evicted"]))
            self.workers[worker].phase = "absent"
        return ends

    def _call(self) -> None:
        for worker in self.random.sample(range(len(self.workers)), len(self.workers)):
            its = self.workers[worker]
            if its.phase == "absent" and self.random.random() < 0.3:
                self._start(worker)
            if self.workers[worker].phase == "idle" and not self._may_end(worker):
                its = self.workers[worker]
                its.calls += 1
                its.vote = self.random.choice(["ok"] * 9 + ["raise"]) if its.calls > 1 else None
                its.phase = "calling"
                self._record(worker, "call", vote=its.vote)
                self._may_end(worker)

    def _decide(self) -> None:
        members = [worker for worker, its in enumerate(self.workers) if its.phase == "calling"]
        calls = {worker: (self.workers[worker].lives, self.workers[worker].calls) for worker in members}
        oks = {worker: self._outcome(worker, calls) for worker in members}
        incs = {str(worker): self._inc(worker) for worker in members}
        self.round += 1
        for worker in self.random.sample(members, len(members)):
            its = self.workers[worker]
            its.block, its.phase = calls, "idle"
            if not self._may_end(worker):
                self._record(worker, "reply", live=members, incs=incs, ok=oks[worker], round=self.round)

    def _outcome(self, worker: int, calls: dict[int, tuple[int, int]]) -> bool | None:
        its = self.workers[worker]
        if its.calls == 1:
            return None
        return all(
            calls.get(member) == (life, call + 1) and self.workers[member].vote != "raise"
            for member, (life, call) in its.block.items()
        )


def right_history(seed: int, workers: int = 4, events: int = 60, death_rate: float = 0.02) -> dict[str, Any]:
    """A history that is valid in every mode but `basic`; the same for the same arguments."""
    return Service(seed, workers, events, death_rate).history()
