"""The stages of an agent, and what each transition does to its workers and to its report."""

from __future__ import annotations

from enum import Enum

from softrun.agent.core.answers import Answers
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.core.local_workers import LocalWorkers
from softrun.agent.core.restart_verdict import RestartVerdict
from softrun.agent.core.standing import Standing
from softrun.agent.core.worker_slot import SIGTERM
from softrun.agent.protocol.descriptions import describe_exit
from softrun.agent.protocol.effects import Failure, Outbox, Outcome, Result
from softrun.agent.protocol.model import NodeIntent, Phase
from softrun.policies import Response, Trigger
from softrun.runtime.events import WorldChangeEvent


class Stage(Enum):
    """What an agent is doing."""

    WAITING = "WAITING"  # for a world; workers are absent, or paused
    WORKING = "WORKING"
    RESTARTING = "RESTARTING"  # the workers are being stopped, to be started again
    FINISHED = "FINISHED"  # all workers have exited 0; waits for the others
    LEAVING = "LEAVING"  # the workers are being stopped for good
    ENDED = "ENDED"


#: From which stage to which an agent goes, and when.
TRANSITIONS = {
    (Stage.WAITING, Stage.WORKING): "a world is sealed with this node",
    (Stage.WAITING, Stage.RESTARTING): "a worker failed, or did not leave; hard: the world changed",
    (Stage.WAITING, Stage.FINISHED): "all workers have exited 0",
    (Stage.WAITING, Stage.LEAVING): "signal, restarts spent, store lost, join timeout",
    (Stage.WORKING, Stage.WORKING): "another world is sealed",
    (Stage.WORKING, Stage.WAITING): "the world is over, and there is no other yet",
    (Stage.WORKING, Stage.RESTARTING): "a worker failed; hard: the world changed",
    (Stage.WORKING, Stage.FINISHED): "all workers have exited 0",
    (Stage.WORKING, Stage.LEAVING): "signal, restarts spent, store lost",
    (Stage.RESTARTING, Stage.WAITING): "the workers are gone",
    (Stage.RESTARTING, Stage.LEAVING): "restarts spent, signal, store lost",
    (Stage.FINISHED, Stage.RESTARTING): "hard: the world changed",
    (Stage.FINISHED, Stage.ENDED): "all nodes are done, or signal",
    (Stage.LEAVING, Stage.LEAVING): "another reason to leave",
    (Stage.LEAVING, Stage.ENDED): "the workers are gone",
}


class Stages:
    """The stage of one agent, and its transitions. `effects` is what the engine is about to return."""

    def __init__(
        self,
        config: EngineConfig,
        answers: Answers,
        workers: LocalWorkers,
        standing: Standing,
        effects: Outbox,
        now: float,
    ) -> None:
        self.stage = Stage.WAITING
        self.since = now
        self.open_since = now
        """Since when there has been no world, by the engine's clock in seconds."""
        self.result: Result | None = None
        """The result that it will end with."""
        self.verdict = RestartVerdict(config.max_restarts, config.verdict_s)
        self._config = config
        self._answers = answers
        self._workers = workers
        self._standing = standing
        self._effects = effects

    def enter(self, stage: Stage, now: float) -> None:
        """Go to another stage. Raises AssertionError for a transition that is not in `TRANSITIONS`."""
        if (self.stage, stage) not in TRANSITIONS:
            raise AssertionError(f"from {self.stage.value} to {stage.value}")
        self.stage = stage
        self.since = self.open_since = now

    def deadline(self) -> float | None:
        """When this stage ends by itself; None: never."""
        config, record = self._config, self._standing.record
        match self.stage:
            case Stage.WAITING if record is None or record.phase is Phase.OPEN or self._standing.cut_off:
                return self.open_since + config.join_timeout_s
            case Stage.RESTARTING if not self._workers.living():
                return self._verdict_at()
            case Stage.FINISHED:
                return self.since + config.exit_barrier_s
            case Stage.LEAVING if self._standing.intent is NodeIntent.FAILED:
                return self.since + config.close_timeout_s
            case _:
                return None

    def is_over(self, now: float) -> bool:
        """Whether the deadline has passed."""
        due = self.deadline()
        return due is not None and now >= due

    # --- waiting for another world

    def halt(self, now: float) -> None:
        """The world is over and there is no other yet."""
        if self._answers.stops_for(Trigger.SCALE_DOWN):
            self.restart(now, charged=False)
        else:
            self._effects += self._workers.pause(WorldChangeEvent.SCALE_DOWN, now)
            self.enter(Stage.WAITING, now)

    def go_on_without_silent(self, now: float) -> None:
        """Ask for a world without the workers that have not asked for one."""
        self._standing.break_world()
        self._workers.leave_out_silent()
        self._effects += self._workers.pause(None, now)
        self.enter(Stage.WAITING, now)

    # --- stopping the workers and starting them again

    def restart(self, now: float, *, charged: bool, withdraw: bool = False, stands: bool = False) -> None:
        """Stop the workers, to start them again. `charged`: one failed; `withdraw`: the node returns as a newcomer.

        `stands`: the world is whole, so all may still save together.
        """
        self.verdict.begin(charges=charged, now=now)
        # If it withdraws, the peers scale down at once, and not only when it is back.
        self._standing.intent = NodeIntent.AWAY if withdraw else NodeIntent.READY
        self.enter(Stage.RESTARTING, now)
        self._effects += self._workers.stop(SIGTERM, now, rewinding=not withdraw, stands=stands)

    def start_again(self, now: float) -> bool:
        """The workers are stopped: start them if the cost of their failure is known. Returns whether they start."""
        if self.verdict.charges and not self._is_excused():
            if now < self._verdict_at():
                return False
            # Only this node's own failures cost a restart: "decrease max_restarts" (RFC, option 1).
            if self.verdict.restarts_left == 0 or self.is_ending():
                self.fail(now)
                return False
            self.verdict.charge()
        elif self.verdict.charges and self._answers.restarts_all:
            self._standing.break_world()
        self.verdict.settle()
        if self._standing.intent is NodeIntent.AWAY:
            self._standing.incarnation += 1
            self._workers.renew()
            self._standing.intent = NodeIntent.READY
        else:
            self._workers.rewind(begins_again=self._answers.begins_again)
        self.enter(Stage.WAITING, now)
        return True

    def _verdict_at(self) -> float:
        return self.verdict.due_at(has_peers=len(self._standing.peers) > 1)

    def _is_excused(self) -> bool:
        """Whether a peer's death is the likely cause of the failure.

        It is not if the workers show whether they work, and had not begun to: such a worker may fail every time.
        """
        workers = self._workers
        if workers.asks and not (self._answers.restarts_all or workers.has_worked()):
            return False
        return self.verdict.is_excused()

    def is_ending(self) -> bool:
        """Whether the job ends without the workers that would have to begin again."""
        record = self._standing.record
        if record is not None and record.finishing and not (self._answers.begins_again and record.preemption is None):
            return True
        match self._answers.to(Trigger.WORKER_FAILURE):
            case Response.STOP_MEET_START:
                return False  # all go on from their checkpoint
            case Response.WITHDRAW_AND_RETURN:
                return self._workers.through() > 0
            case _:
                return self._workers.through() > 0 and len(self._standing.peers) == 1

    # --- ending

    def finish(self, now: float) -> None:
        """All workers have exited 0."""
        if self._workers.told is None:
            self.leave(Result(Outcome.SUCCEEDED, "the workers of this node ended before they were in a world"), now)
            return
        self._standing.intent = NodeIntent.FINISHED
        self.enter(Stage.FINISHED, now)
        self._effects.note("all workers of this node have finished")

    def fail(self, now: float) -> None:
        """A worker has failed for good."""
        result = self.workers_failed()
        response = self._answers.to(Trigger.RESTARTS_SPENT)
        self.leave(result, now)
        if response is Response.END_JOB:
            last = self.verdict.failures[-1]
            self._standing.intent = NodeIntent.FAILED
            self._standing.reason = f"{self._config.node}: worker of rank {last.rank} {describe_exit(last.exitcode)}"

    @property
    def succeeds(self) -> bool:
        """Whether this node leaves, and nothing has gone wrong."""
        return self.result is not None and self.result.outcome is Outcome.SUCCEEDED

    def fails_after_all(self, failure: Failure) -> None:
        """A worker that nobody had asked to end has failed on the way out."""
        self.verdict.failed(failure)
        self.result = self.workers_failed()

    def workers_failed(self) -> Result:
        """The result if workers failed for good, with the failures since the last restart."""
        return Result(Outcome.WORKERS_FAILED, failures=tuple(self.verdict.failures))

    def leave(self, result: Result, now: float, signum: int = SIGTERM, *, stands: bool = False) -> None:
        """Stop the workers for good. `stands`: nobody goes on without them, so all may still save together."""
        self.result = result
        self._standing.departure = None
        self._standing.intent = NodeIntent.LEFT
        self.enter(Stage.LEAVING, now)
        self._effects += self._workers.stop(signum, now, stands=stands)
