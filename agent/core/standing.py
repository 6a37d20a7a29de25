"""Where this node stands: the newest record, its place there, and its report to its leader and followers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from softrun.agent.core.answers import Answers
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.core.local_workers import LocalWorkers
from softrun.agent.core.step_barrier import StepBarrier
from softrun.agent.core.worker_health import WorkerHealth
from softrun.agent.live.live_calls import LiveCalls
from softrun.agent.protocol.effects import Result
from softrun.agent.protocol.model import NO_RECORD, Member, NodeIntent, Report, Round
from softrun.agent.rendezvous.leader import Leader
from softrun.agent.rendezvous.lease_clock import LeaseClock


@dataclass
class Departure:
    """A node that is to leave and has not left yet. Times are the engine's, in seconds."""

    result: Result
    until: float
    """When it leaves even if the others still need it."""
    since: float
    """When it was told, or learned that all leave."""
    told_at: float | None = None
    """When this node itself was told; None: others were, and all leave."""
    all_leave: bool = False
    """It was told that all are to leave."""
    saves: bool = False
    """Its workers save if all leave, so it waits for an agreement on that, also while there is no world."""
    preempted: bool = False
    """All leave, and its workers save."""
    seen_off: bool = False
    """Whether the others have a world without it: its workers then work on to the agreed step."""

    @property
    def reason(self) -> str:
        """Who told it, or what did."""
        return self.result.reason or f"signal {self.result.signum}"

    def is_due(self, *, needed: bool, has_left: bool, expelled: bool, now: float) -> bool:
        """Whether it leaves now. `has_left`: its workers have left their world; `expelled`: nobody waits for it."""
        gone = self.seen_off and has_left
        sent = expelled and not (self.seen_off or self.preempted)
        return not needed or gone or sent or now >= self.until


class Standing:
    """Holds what no other part of the engine knows about this node, and asks the other parts for the rest."""

    def __init__(
        self,
        config: EngineConfig,
        answers: Answers,
        workers: LocalWorkers,
        health: WorkerHealth,
        barrier: StepBarrier,
        lease: LeaseClock,
        calls: LiveCalls,
    ) -> None:
        self.record: Round | None = None
        self.incarnation = 1
        self.intent = NodeIntent.READY
        self.reason = ""
        """Why the job is to end: the cause of NodeIntent.FAILED."""
        self.broken_round = 0
        """The last world that one of its workers found broken; 0: none."""
        self.left_behind = False
        """Whether the others may have gone on without this node, and its workers may be in the world of before."""
        self.cut_off = False
        """Whether too few members of the record are in touch to agree on the next one."""
        self.departure: Departure | None = None
        """Set once it was told to leave, while it works until the others can go on without it."""
        self.promised = 0
        """The edition of the record in whose world no verdict is delivered any more."""
        self.said: Report | None = None
        """The last report."""
        self._yielded = 0
        self._config = config
        self._answers = answers
        self._workers = workers
        self._health = health
        self._barrier = barrier
        self._lease = lease
        self._calls = calls

    @property
    def life(self) -> tuple[str, int]:
        """The node and its incarnation: together they identify a member of a record."""
        return self._config.node, self.incarnation

    @property
    def peers(self) -> set[str]:
        """The nodes of the world that the workers were told of last."""
        told = self._workers.told
        return {m.node for m in told.members} if told is not None else set()

    @property
    def is_placed(self) -> bool:
        """Whether it has a place in the newest record."""
        return self.is_in(self.record)

    def is_in(self, record: Round | None) -> bool:
        """Whether this incarnation of the node has a place there."""
        return record is not None and record.member(*self.life) is not None

    def break_world(self) -> None:
        """Report the world that the workers are in as broken, to get another."""
        if self._workers.told is None:
            raise AssertionError("a worker was in no world")
        self.broken_round = self._workers.told.number

    @property
    def joins(self) -> bool:
        """Whether it joins with all its workers. A node that returns does not wait for those that were replaced."""
        workers = self._workers
        waits = bool(workers.outside()) and workers.waits_for_silent
        return waits and not self.is_placed and not workers.was_in_world()

    def member(self) -> Member:
        """Its entry in the next record."""
        config = self._config
        workers = () if self.joins else self._workers.eligible()
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

    def report(self, leadership: Leader, now: float) -> Report:
        """Return its report as it is now. The sequence number rises if anything differs from the last report."""
        workers, leaving = self._workers, self.departure
        own, done = self.member(), workers.done()
        again = self._answers.begins_again  # so what some of its workers have done does not count yet
        report = Report(
            member=own,
            intent=self.intent,
            known=self.record.id if self.record is not None else NO_RECORD,
            done=() if again and self.intent is not NodeIntent.FINISHED else done,
            broken_round=self.broken_round,
            reason=self.reason or (leaving.reason if leaving is not None else ""),
            sequence=self.said.sequence if self.said is not None else 0,
            fault=self._health.to_say(now),
            missed_round=0 if again else workers.missed,
            through=0 if again else workers.through(),
            stuck=workers.has_stuck(),
            since=workers.since(),
            leaving=leaving is not None,
            leave_s=self._config.grace_s if leaving is not None else 0.0,
            all_leave=leaving is not None and leaving.all_leave,
            heeds=workers.heeds(),
            never_came=0 if self._answers.restarts_all else workers.never_came,
            asks=workers.has_asked(),
            told=workers.number,
            yields=self._yields(own, done),
            calls=self._calls.used,
            decides=self._decides(),
            promised=self.promised,
            verdicts=self._calls.delivered() if self._says_verdicts else (),
            barrier_answer=self._barrier.answer(),
            barrier_request=leadership.barrier_request,
            release_edition=leadership.release_edition,
            expels_leavers=leadership.expels_leavers,
            hands_over=leadership.hands_over,
            asks_promise=leadership.asks_promise,
        )
        return self._numbered(report)

    @property
    def _says_verdicts(self) -> bool:
        """Whether no more verdicts follow: it has promised that, or its work is done."""
        has_promised = self.record is not None and self.promised == self.record.edition
        return has_promised or self.intent is not NodeIntent.READY

    def _decides(self) -> int:
        number = self.record.number if self.record is not None else 0
        return number if self._calls.used and self._calls.coordinates(number) else 0

    def amended(self, report: Report, leadership: Leader) -> Report:
        """Return the last report with what this node now says as a leader and to its leader."""
        now = (
            self._barrier.answer(),
            leadership.barrier_request,
            leadership.release_edition,
            leadership.expels_leavers,
            leadership.hands_over,
            leadership.asks_promise,
        )
        then = (
            report.barrier_answer,
            report.barrier_request,
            report.release_edition,
            report.expels_leavers,
            report.hands_over,
            report.asks_promise,
        )
        if now == then:
            return report
        answer, request, release, expels, hands_over, promise = now
        return self._numbered(
            replace(
                report,
                barrier_answer=answer,
                barrier_request=request,
                release_edition=release,
                expels_leavers=expels,
                hands_over=hands_over,
                asks_promise=promise,
            )
        )

    def _numbered(self, report: Report) -> Report:
        if report != self.said:
            self.said = replace(report, sequence=report.sequence + 1)
        return self.said

    def _yields(self, own: Member, done: tuple[int, ...]) -> int:
        """The edition of the last record in which this node has a place that none of its workers needs any more."""
        record = self.record
        if (
            record is not None
            and self._yielded != record.edition
            and (not own.workers or self._config.node in record.finished_nodes)
            and all(worker.local_rank in done for worker in own.workers)
            and self.is_placed
        ):
            self._yielded = record.edition
        return self._yielded
