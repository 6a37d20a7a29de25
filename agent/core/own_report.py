"""What this node says of itself: its place in a record, and the report that its leader and its followers hear."""

from __future__ import annotations

from dataclasses import replace

from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.core.lease_clock import LeaseClock
from softrun.agent.core.local_workers import LocalWorkers
from softrun.agent.core.step_barrier import StepBarrier
from softrun.agent.core.worker_health import WorkerHealth
from softrun.agent.protocol.model import Member, NodeIntent, Report, Round
from softrun.agent.rendezvous.leader import Leader


class OwnReport:
    """Holds what no other part of the engine knows of this node; the rest is asked of those that do know it."""

    def __init__(
        self, config: EngineConfig, workers: LocalWorkers, health: WorkerHealth, barrier: StepBarrier, lease: LeaseClock
    ) -> None:
        self.incarnation = 1
        self.intent = NodeIntent.READY
        self.reason = ""
        """Why the job is to end: the cause of NodeIntent.FAILED."""
        self.broken_round = 0
        """The last world that one of its workers found broken; 0 is none."""
        self._yielded = 0
        self._last: Report | None = None
        self._config = config
        self._workers = workers
        self._health = health
        self._barrier = barrier
        self._lease = lease

    @property
    def life(self) -> tuple[str, int]:
        """The node and its incarnation, which together have a place in a record."""
        return self._config.node, self.incarnation

    def is_in(self, record: Round | None) -> bool:
        """Whether this incarnation of the node has a place there."""
        return record is not None and record.member(*self.life) is not None

    def break_world(self) -> None:
        """Ask for another world than the one that the workers are in."""
        if self._workers.told is None:
            raise AssertionError("a worker was in no world")
        self.broken_round = self._workers.told.number

    def joins(self, record: Round | None) -> bool:
        """A node that joins comes with all its workers; one that returns does not wait for those that were replaced."""
        workers = self._workers
        waits = bool(workers.outside()) and workers.waits_for_silent
        return waits and not self.is_in(record) and not workers.was_in_world()

    def member(self, record: Round | None) -> Member:
        """Its entry in the next record; `record` is the present one."""
        config = self._config
        workers = () if self.joins(record) else self._workers.eligible()
        return Member(
            node=config.node,
            incarnation=self.incarnation,
            host=config.host,
            port=config.port,
            role=config.role,
            workers=workers,
            lease_number=self._lease.lease_number,
            preferred_rank=config.preferred_rank,
        )

    def report(
        self, record: Round | None, leadership: Leader, *, leaving: bool, restarts_all: bool, now: float
    ) -> Report:
        """All that it says now. Its sequence number rises when it says something else than the last time.

        `leaving`: it was told to. `restarts_all`: a world of the same members costs the workers their processes.
        """
        last, workers = self._last, self._workers
        own, done = self.member(record), workers.done()
        report = Report(
            member=own,
            intent=self.intent,
            done=done,
            broken_round=self.broken_round,
            reason=self.reason,
            sequence=last.sequence if last is not None else 0,
            fault=self._health.to_say(now),
            missed_round=workers.missed,
            through=workers.through(),
            stuck=workers.has_stuck(),
            since=workers.since(),
            leaving=leaving,
            never_came=0 if restarts_all else workers.never_came,
            asks=workers.has_asked(),
            yields=self._yields(record, own, done),
            barrier_answer=self._barrier.answer(),
            barrier_request=leadership.barrier_request,
            release_version=leadership.release_version,
            expels_leavers=leadership.expels_leavers,
        )
        if report != last:
            self._last = last = replace(report, sequence=report.sequence + 1)
        return last

    def _yields(self, record: Round | None, own: Member, done: tuple[int, ...]) -> int:
        """The version of a record in which all workers of this node have a place no more."""
        if (
            record is not None
            and self._yielded != record.version
            and all(worker.local_rank in done for worker in own.workers)
            and self.is_in(record)
        ):
            self._yielded = record.version
        return self._yielded
