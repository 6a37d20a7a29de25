"""What an agent does when a worker of its node says something, hangs, never asks for a world, or ends."""

from __future__ import annotations

from dataclasses import replace

from softrun.agent.core.answers import Answers
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.core.local_workers import LocalWorkers
from softrun.agent.core.stages import Stage, Stages
from softrun.agent.core.standing import Standing
from softrun.agent.core.step_barrier import StepBarrier
from softrun.agent.core.worker_health import Finding, WorkerHealth
from softrun.agent.live.live_calls import Overdue
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.descriptions import describe_exit
from softrun.agent.protocol.effects import Outbox
from softrun.agent.protocol.model import Phase
from softrun.agent.rendezvous import ranks
from softrun.agent.rendezvous.leader import Leader
from softrun.policies import Response, Trigger
from softrun.runtime.events import WorkerFault, WorkerStatus

LOOK_S = 1.0  # how often to look whether workers that never asked for a world have begun


class WorkerNews:
    """Takes in what the workers do. `effects` is what the engine is about to return."""

    def __init__(
        self,
        config: EngineConfig,
        answers: Answers,
        workers: LocalWorkers,
        health: WorkerHealth,
        barrier: StepBarrier,
        standing: Standing,
        stages: Stages,
        leadership: Leader,
        effects: Outbox,
    ) -> None:
        self._replaces = False  # a worker is to be started in the place of a failed one
        self._look_at: float | None = None  # when to look again whether workers that do not ask have begun
        self._config = config
        self._answers = answers
        self._workers = workers
        self._health = health
        self._barrier = barrier
        self._standing = standing
        self._stages = stages
        self._leadership = leadership
        self._effects = effects

    def deadlines(self) -> list[float | None]:
        """When to `advance` if nothing else happens first."""
        return [*self._health.deadlines(), self._workers.deadline(), self._look_at, self._late_at()]

    def advance(self, now: float) -> None:
        """Do what is due, without any news."""
        self._look_for_stores(now)
        self._look_for_late(now)
        self._effects += self._health.advance(now)
        self._effects += self._workers.tick(now)
        for failure in self._workers.given_up():
            self.gone(failure, now)

    # --- what they say, and whether they make progress

    def said(self, local_rank: int, launch: int, status: WorkerStatus, now: float) -> None:
        """A worker has written its status."""
        told = self._workers.told
        if status.gone and self._answers.restarts_all:  # nobody goes on without it
            status = status.model_copy(update={"gone": False})
        if not self._workers.said(local_rank, launch, status, now) or told is None:
            return
        if told.number in (status.counts, status.idle):
            self._effects += self._barrier.look_again(local_rank, launch)
        if self._workers.has_worked():
            self._leadership.worked_in(told.number)
        if status.broken_round == told.number:
            self._standing.broken_round = told.number
        if status.gone:
            self.gone(None, now)
        if status.fault is not None:
            self.faulted(local_rank, status.fault, now)

    def faulted(self, local_rank: int, fault: WorkerFault, now: float) -> None:
        """A worker reports that its work in a world has failed."""
        told = self._workers.told
        if told is None or fault.round != told.number:
            return
        if self._answers.restarts_all:
            # A restart is a new process, so a worker that needs one has failed.
            self._effects += self._workers.end(local_rank, now, hangs=False)
        else:
            self._health.told(told, local_rank, fault, now)

    def showed_progress(self, seen: saw.ProgressSeen, now: float) -> None:
        """A worker's progress was read."""
        local_rank = seen.local_rank
        finding = self._health.look(seen, now)
        text = self._workers.describe(local_rank, now)
        match finding:
            case Finding.WELL:
                pass
            case Finding.SUSPECT if not self._answers.restarts_all:
                self._suspect(local_rank, text, now)
            case Finding.STUCK:
                self._effects.note(f"{text} and has not left its world: the others go on without it", warning=True)
            case Finding.SUSPECT | Finding.HANGS:
                self._effects.note(f"{text} and is ended", warning=True)
                self._effects += self._workers.end(local_rank, now)

    def is_overdue(self, late: Overdue, now: float) -> None:
        """A worker has been in its block for too long: it hangs, or waits for one that does."""
        local_rank = late.local_rank
        text = f"worker {local_rank} has been in its block for {late.timeout_s:g} s"
        if not late.was_told and not self._answers.restarts_all:
            self._suspect(local_rank, text, now)
        elif not self._workers.waits(local_rank):
            self._effects += self._workers.show(local_rank)
            self._effects.note(f"{text} and is ended", warning=True)
            self._effects += self._workers.end(local_rank, now)

    def _suspect(self, local_rank: int, text: str, now: float) -> None:
        self._effects += self._workers.show(local_rank)
        if self._stages.stage is Stage.WORKING and not self._workers.leaving(local_rank):
            self._effects.note(f"{text}: asking for a new world", warning=True)
            self._stages.go_on_without_silent(now)
            self._health.accuse(local_rank, now)
            self._effects += self._workers.look_at_all()
        self._health.suspect(local_rank, now)

    # --- workers that ask for no world

    def _late_at(self) -> float | None:
        """When to go on without the workers that have yet to ask for a world."""
        joins = self._standing.joins
        return self._workers.late_at(joins) if joins or self._stages.stage is Stage.WORKING else None

    def _look_for_late(self, now: float) -> None:
        late_at = self._late_at()
        if late_at is None or now < late_at or self._answers.restarts_all:
            return
        for local_rank in self._workers.silent():
            self._effects.note(
                f"worker {local_rank} has yet to ask for its world: the others go on until it does", True
            )
        if self._standing.joins:
            self._workers.leave_out_silent()
        else:
            self._stages.go_on_without_silent(now)

    def _look_for_stores(self, now: float) -> None:
        """Workers that have not asked for a world may have begun in one that is not theirs."""
        unasked = [] if self._answers.restarts_all else self._workers.unasked()
        if not unasked:
            self._look_at = None
        elif self._look_at is None or now >= self._look_at:
            self._look_at = now + LOOK_S
            self._effects += [do.LookForStore(local_rank, launch) for local_rank, launch in unasked]

    def used_store(self, local_rank: int, launch: int, port: int, now: float) -> None:
        """A worker has begun in the world that its environment names, without asking for one."""
        at_work = self._stages.stage in (Stage.WAITING, Stage.WORKING)
        if at_work and self._workers.uses_store(local_rank, launch, port):
            self._effects.note(
                f"worker {local_rank} takes its world from its environment alone, and the world is another by now: the "
                "workers of this node are started again, as they are with each world under --restart_policy hard; a "
                "script that calls softrun.worlds() or get_worker_info() keeps its processes",
                warning=not self._workers.never_asks,
            )
            self._workers.never_asks = True
            self._stages.restart(now, charged=False)

    # --- workers that end

    def returned(self, local_rank: int, launch: int, now: float) -> None:
        """The function of a worker has returned."""
        self._effects += self._workers.returned(local_rank, launch)
        self.gone(None, now)

    def exited(self, local_rank: int, launch: int, exitcode: int, now: float) -> None:
        """The process of a worker has ended."""
        self.gone(self._workers.exited(local_rank, launch, exitcode), now)

    def gone(self, failure: do.Failure | None, now: float) -> None:
        """A worker has ended or was given up; None: that is not a failure."""
        match self._stages.stage:
            case Stage.WAITING | Stage.WORKING:
                if failure is not None:
                    self._failed(failure, now)
                    return
                if (self._workers.incomplete or self._workers.unbuilt) and not self._answers.restarts_all:
                    self._standing.break_world()
                if self._workers.through():
                    self._effects += self._workers.dismiss(now)
                self._finish_if_done(now)
            case Stage.LEAVING if failure is not None and self._stages.succeeds:
                # The job was done without it, but it was left to end by itself: it counts as it would have before.
                recorded = self._answers.to(Trigger.WORKER_FAILURE) is Response.RECORD_FAILURE
                if not (recorded and self._workers.finished()) or self._workers.is_unmet(failure.local_rank):
                    self._stages.fails_after_all(failure)
            case Stage.RESTARTING | Stage.LEAVING:
                pass  # they were asked to end; the engine looks whether all have
            case Stage.FINISHED | Stage.ENDED:
                pass  # it was given up long ago

    def _finish_if_done(self, now: float) -> None:
        self._effects += self._workers.release()
        if self._workers.finished():
            self._stages.finish(now)
        elif self._stages.verdict.failures and not (self._workers.eligible() or self._workers.living()):
            self._stages.fail(now)

    def _failed(self, failure: do.Failure, now: float) -> None:
        self._stages.verdict.failed(failure)
        self._effects.note(f"worker of rank {failure.rank} {describe_exit(failure.exitcode)}", warning=True)
        response = self._answers.to(Trigger.WORKER_FAILURE)
        if self._stages.is_ending():  # a restarted worker would be a newcomer, and finished work is never run again
            if response not in (Response.REPLACE_WORKER, Response.RECORD_FAILURE):
                self._stages.fail(now)
                return
            self._stages.verdict.stands = response is Response.REPLACE_WORKER
            response = Response.RECORD_FAILURE
        elif self._workers.is_final(failure.local_rank) and not self._answers.restarts_all:
            response = Response.RECORD_FAILURE
        match response:
            case Response.STOP_MEET_START:
                # This node keeps its place, and all nodes meet just once: in the world that follows the broken one. If
                # its failure ends the job there is none, and nobody's finished work is to begin again until then.
                if self._stages.verdict.restarts_left:
                    self._standing.break_world()
                self._stages.restart(now, charged=True)
            case Response.WITHDRAW_AND_RETURN:
                self._stages.restart(now, charged=True, withdraw=True)
            case Response.REPLACE_WORKER:
                if self._workers.restarts_of(failure.local_rank) >= self._config.max_restarts:
                    self._stages.fail(now)
                else:
                    self._replaces = self._others_work()
                    self._workers.replace(failure.local_rank, outside=self._replaces)
            case Response.RECORD_FAILURE if self._workers.is_unmet(failure.local_rank):
                self._stages.fail(now)  # whoever comes later would do its part alone, and call that success
            case Response.RECORD_FAILURE:
                self._finish_if_done(now)
            case _:
                raise AssertionError(f"a policy answered a worker's failure with {response}")

    # --- workers that start before there is a world for them

    def replace_failed(self, now: float) -> None:
        """Start the replacement of a failed worker, once the survivors' world is under way: a start takes a while."""
        if self._replaces:
            self._replaces = False
            self.warm_up(now)

    def warm_up(self, now: float) -> None:
        """Start the workers that will join a world under way outside it, so that nobody waits for their imports."""
        record = self._standing.record
        if record is not None and self._workers.absent() and self._others_work():
            own = replace(self._standing.member(), workers=self._workers.all_workers())
            expected, restarts_left = ranks.with_member(record, own), self._stages.verdict.restarts_left
            self._effects += self._workers.warm_up(expected, self._standing.life, restarts_left, now)

    def _others_work(self) -> bool:
        """Whether a world goes on while a worker starts to join it."""
        record = self._standing.record
        sealed = record is not None and record.phase is Phase.SEALED and not record.finishing
        return sealed and not self._answers.stops_for(Trigger.SCALE_UP)
