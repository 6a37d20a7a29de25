"""One engine alone, and what it has said and done."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from values import JOB, member, sealed

from softrun.agent.core.engine import Engine
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.model import (
    Address,
    Report,
    Round,
    Worker,
)
from softrun.policies import WorkerFailure, load_policy
from softrun.runtime.events import ProgressLimits, WorkerFault, WorkerState, WorkerStatus

T = TypeVar("T")


class Agent:
    """An engine, its clock, and the newest of what it has said and done."""

    def __init__(
        self,
        workers: int = 1,
        policy: str = "soft",
        failure: str = "no-replace",
        restarts: int = 3,
        endpoints: tuple[Address, ...] = (),
        tolerance_s: float = 1e6,  # what does not answer here is mostly not the matter
        witness: Address | None = None,
        join_timeout_s: float = EngineConfig.join_timeout_s,
    ) -> None:
        job = replace(JOB, restart_policy=policy, worker_failure=failure, witness=witness)
        config = EngineConfig(
            job,
            "a",
            "host-a",
            7000,
            "trainer",
            workers,
            restarts,
            endpoints=endpoints,
            beat_tolerance_s=tolerance_s,
            grace_s=2.0,
            join_timeout_s=join_timeout_s,
        )
        self.job = job
        self.now = 0.0
        self.engine = Engine(config, load_policy(policy, WorkerFailure(failure)), 0.0)
        self.effects: list[do.Effect] = []
        self.report: Report | None = None

    def see(self, *seen: saw.Observation) -> list[do.Effect]:
        self.effects = [effect for one in seen for effect in self.engine.observe(one, self.now)]
        for effect in self.effects:
            if isinstance(effect, do.Say) and isinstance(effect.message, Report):
                self.report = effect.message
        return self.effects

    def record(self, round_: Round) -> list[do.Effect]:
        return self.see(saw.RecordSeen(replace(round_, settings=self.job)))

    def say(self, local_rank: int = 0, applied: int = 1, launch: int = 1, **status: object) -> list[do.Effect]:
        said = WorkerStatus.model_validate({"ready": True, "applied": applied, **status})
        return self.see(saw.WorkerSaid(local_rank, launch, said))

    def go_on(self, until: float) -> list[do.Effect]:
        """Tick whenever the engine wants to; returns all that it did."""
        effects: list[do.Effect] = []
        while (due := self.engine.deadline()) is not None and due <= until:
            self.now = due
            effects += self.see(saw.Tick())
        self.now = until
        return effects + self.see(saw.Tick())

    def progress(self, at: float, *local_ranks: int, stopped: bool = False) -> list[do.Effect]:
        """Of these workers, and of those that are then looked at as well."""
        effects = self.see(*(saw.ProgressSeen(local_rank, 1, at, stopped) for local_rank in local_ranks or (0,)))
        again = [effect.local_rank for effect in effects if isinstance(effect, do.LookAtProgress)]
        return effects + (self.progress(at, *again, stopped=stopped) if again else [])

    def workers(self) -> tuple[Worker, ...]:
        assert self.report is not None
        return self.report.member.workers

    def fault(self) -> WorkerFault | None:
        assert self.report is not None
        return self.report.fault


def working(workers: int = 1, limits: ProgressLimits | None = None, **job: str) -> Agent:
    """In a world with b, of which the workers have obeyed the first event."""
    agent = Agent(workers, **job)
    agent.record(sealed(member("a", workers=workers), member("b", workers=workers)))
    for local_rank in range(workers):
        agent.say(local_rank, limits=limits)
    return agent


def looked(effects: list[do.Effect]) -> list[int]:
    return [e.local_rank for e in effects if isinstance(e, do.LookAtProgress)]


def shown(effects: list[do.Effect]) -> list[int]:
    return [e.local_rank for e in effects if isinstance(e, do.ShowStacks)]


def paused(effects: list[do.Effect]) -> list[int]:
    return [e.local_rank for e in effects if isinstance(e, do.Tell) and e.state is WorkerState.PAUSED]


def signals(effects: list[do.Effect]) -> list[tuple[int, int]]:
    return [(e.local_rank, e.signum) for e in effects if isinstance(e, do.SignalWorker)]


def spawned(effects: list[do.Effect]) -> list[tuple[int, WorkerState]]:
    return [(tell.local_rank, tell.state) for e in effects if isinstance(e, do.Spawn) for tell in e.tell]


def sought(effects: list[do.Effect]) -> list[Address]:
    return [e.endpoint for e in effects if isinstance(e, do.Seek)]


def said(effects: list[do.Effect], kind: type[T]) -> list[tuple[str | None, T]]:
    return [(e.node, e.message) for e in effects if isinstance(e, do.Say) and isinstance(e.message, kind)]
