"""Small histories, drawn at random: of a service that mostly decides rightly, or hardly ever."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]


@dataclass
class _Drawn:
    """What a worker is doing."""

    phase: str = "absent"
    inc: str | None = None
    lives: int = 0
    calls: int = 0
    answer: Event | None = None  # what its call will be answered
    block: dict[int, tuple[int, int]] | None = None  # (life, call) of each member of its block
    scope: list[int] | None = None
    vote: str | None = None


class Drawing:
    """A history that is being drawn."""

    def __init__(self, seed: int, most_events: int = 13) -> None:
        self.random = random.Random(seed)
        self.procs = list(range(self.random.choice([2, 2, 3, 3, 3, 4])))
        self.workers = [_Drawn() for _ in self.procs]
        self.with_incs = self.random.random() < 0.4
        self.with_rounds = self.random.random() < 0.3
        self.with_scopes = self.random.random() < 0.2
        self.noise = self.random.choice([0.0, 0.03, 0.1, 0.5])
        self.ends = self.random.choice([1, 2, 2, 3])  # how many more lives may end
        self.rounds = 0
        self.events: list[Event] = []
        while len(self.events) < most_events:
            self._act()

    def history(self) -> dict[str, Any]:
        return {"procs": self.procs, "events": self.events}

    def _chance(self, likely: float) -> bool:
        return self.random.random() < likely

    def _record(self, worker: int, kind: str, **fields: Any) -> None:
        kept = {name: value for name, value in fields.items() if value is not None}
        self.events.append({"t": len(self.events) + 1, "p": worker, "e": kind, **kept})

    def _act(self) -> None:
        worker = self.random.choice(self.procs)
        drawn = self.workers[worker]
        if self._chance(0.3):
            self._decide()
        if drawn.phase == "absent":
            self._start(worker)
        elif self._chance(0.12) and self.ends:
            self._end(worker)
        elif drawn.phase == "idle":
            self._call(worker)
        elif drawn.answer is not None and self._chance(0.7):
            self._reply(worker, drawn.answer)
        elif drawn.answer is None and self._chance(self.noise):
            self._reply(worker, self._answer(self.random.sample(self.procs, self.random.randint(1, len(self.procs)))))
        elif self._chance(0.08):
            self._record(worker, "error")
            drawn.phase, drawn.answer, drawn.block = "idle", None, None

    def _start(self, worker: int) -> None:
        drawn = self.workers[worker]
        inc = f"{worker}.{drawn.lives}" if self.with_incs else None
        self._record(worker, "start", inc=inc)
        self.workers[worker] = _Drawn("idle", inc, drawn.lives + 1)

    def _end(self, worker: int) -> None:
        self.ends -= 1
        if self._chance(0.15):
            self._start(worker)
            return
        self._record(worker, self.random.choice(["fail", "fail", "evicted"]))
        self.workers[worker].phase = "absent"
        self.workers[worker].answer = None

    def _call(self, worker: int) -> None:
        drawn = self.workers[worker]
        drawn.calls += 1
        drawn.vote = self.random.choice(["ok", "ok", "raise", None]) if drawn.calls > 1 else None
        drawn.scope = None
        if self.with_scopes and self._chance(0.7):
            drawn.scope = sorted({*self.random.sample(self.procs, 2), *([worker] if self._chance(0.9) else [])})
        drawn.phase = "calling"
        self._record(worker, "call", scope=drawn.scope, vote=drawn.vote)

    def _decide(self) -> None:
        """Answer those that call: all of them, or some, while the others are taken for dead."""
        calling = [worker for worker in self.procs if self.workers[worker].phase == "calling"]
        calling = [worker for worker in calling if self.workers[worker].answer is None]
        if not calling:
            return
        scope = self.workers[calling[0]].scope
        members = [worker for worker in calling if self.workers[worker].scope == scope and self._chance(0.9)]
        idle = [worker for worker in scope or self.procs if self.workers[worker].phase == "idle"]
        if not members or (idle and self._chance(0.7)):
            return
        answer = self._answer(members)
        calls = {worker: (self.workers[worker].lives, self.workers[worker].calls) for worker in members}
        oks = {worker: self._outcome(worker, calls) for worker in members}
        for worker in members:
            self.workers[worker].answer = {**answer, "ok": oks[worker]}
            self.workers[worker].block = calls

    def _outcome(self, worker: int, calls: dict[int, tuple[int, int]]) -> bool | None:
        drawn = self.workers[worker]
        if self._chance(self.noise):
            return self.random.choice([True, False, None])
        if drawn.calls == 1:
            return None
        return drawn.block is not None and all(
            calls.get(member) == (life, call + 1) and self.workers[member].vote != "raise"
            for member, (life, call) in drawn.block.items()
        )

    def _answer(self, members: list[int]) -> Event:
        self.rounds += 1
        if self._chance(self.noise):
            members = sorted({*members, self.random.choice(self.procs)} - {self.random.choice(self.procs)}) or members
        answer: Event = {"live": sorted(members)}
        if self.with_rounds and self._chance(0.8):
            answer["round"] = self.rounds
        if self.with_incs and all(self.workers[worker].lives for worker in members) and self._chance(0.8):
            answer["incs"] = {str(worker): self.workers[worker].inc for worker in members}
        return answer

    def _reply(self, worker: int, answer: Event) -> None:
        if "round" in answer and self._chance(self.noise / 3):
            answer = {**answer, "round": self.rounds}
        self._record(worker, "reply", **answer)
        self.workers[worker].phase, self.workers[worker].answer = "idle", None


def random_history(seed: int, most_events: int = 13) -> dict[str, Any]:
    """A history; the same for the same seed."""
    return Drawing(seed, most_events).history()
