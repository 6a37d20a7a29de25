"""How this node leaves when it, or the whole job, is told to end.

There are three ways, from the gentlest on:

- **Seen off**: the others can go on without this node. It works until they have a world without it; all leave the last
  one after the same step.
- **Preempted**: the whole job is told to end, or too few nodes would be left. All ranks stop after one agreed step, the
  workers save while their group still stands, and end. The record says so (`Round.preemption`), so every node does it.
  It takes workers that heed (`softrun.on_leave`).
- **At once**: the workers get the signal.

A stop is no hurry: supervisors repeat their signals, and the workers may be saving. `--shutdown_timeout` is the limit.
A person who will not wait sends SIGQUIT after the first signal, or Ctrl-C three times within a second.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from softrun.agent.core.answers import Answers
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.core.local_workers import LocalWorkers
from softrun.agent.core.stages import Stage, Stages
from softrun.agent.core.standing import Departure, Standing
from softrun.agent.core.worker_slot import SIGKILL, SIGTERM
from softrun.agent.protocol.effects import Outbox, Outcome, Result
from softrun.agent.protocol.model import Phase, Round
from softrun.policies import Response, Trigger
from softrun.runtime.events import Preemption, WorldChangeEvent

SIGINT, SIGQUIT = 2, 3
IMPATIENT = 3
IMPATIENT_S = 1.0
"""So many SIGINTs within so many seconds come from a person who will not wait."""


class Departures:
    """What is done about being told to leave. `effects` is what the engine is about to return."""

    def __init__(
        self,
        config: EngineConfig,
        answers: Answers,
        workers: LocalWorkers,
        standing: Standing,
        stages: Stages,
        effects: Outbox,
        now: float,
    ) -> None:
        self._config = config
        self._answers = answers
        self._workers = workers
        self._standing = standing
        self._stages = stages
        self._effects = effects
        self._interrupted_at: list[float] = []  # the last SIGINTs
        self._was_repeated = False
        limit_s = config.time_limit_s
        self._time_up_at = None if limit_s is None else now + max(limit_s - config.grace_s, 0.0)

    def deadlines(self) -> list[float | None]:
        """When to `advance` if nothing else happens first."""
        leaving = self._standing.departure
        return [leaving.until if leaving is not None else None, self._time_up_at]

    # --- it is told to

    def signalled(self, signum: int, now: float) -> None:
        """This agent got a signal, with workers that have not all ended."""
        leaving, goes = self._standing.departure, self._stages.stage is Stage.LEAVING
        is_first = leaving is None and not goes
        if self._is_impatient(signum, is_first=is_first, now=now):
            if goes:
                self._effects += self._workers.stop(SIGKILL, now)
            else:
                self._stages.leave(Result(Outcome.SIGNALLED, signum=signum), now, SIGKILL)
        elif leaving is not None and leaving.told_at is None:  # the others were told before
            leaving.told_at = now
            leaving.result = replace(leaving.result, signum=signum)
        elif is_first:
            self._begin(Result(Outcome.SIGNALLED, signum=signum), now)
        elif not self._was_repeated:
            self._was_repeated = True
            self._effects.note(
                f"this node is leaving already, and its workers have {self._config.grace_s:g} s to save and to end: "
                "SIGQUIT, or Ctrl-C three times within a second, kills them at once",
                warning=True,
            )

    def _is_impatient(self, signum: int, *, is_first: bool, now: float) -> bool:
        if signum == SIGINT:
            self._interrupted_at = [*self._interrupted_at, now][-IMPATIENT:]
        since = self._interrupted_at[0] if len(self._interrupted_at) == IMPATIENT else -inf
        presses = signum == SIGINT and now - since <= IMPATIENT_S
        return not is_first and (presses or signum == SIGQUIT)

    def _begin(self, result: Result, now: float, *, all_leave: bool = False) -> None:
        goes_on = not all_leave and self._others_may_go_on()
        placed = self._standing.is_placed and self._stages.stage in (Stage.WAITING, Stage.WORKING)
        saves = placed and self._workers.heeds()
        if not (saves or (goes_on and self._stages.stage is Stage.WORKING)):
            self._stages.leave(result, now, result.signum or SIGTERM, stands=not goes_on)
            return
        wait_s = self._workers.leave_s if goes_on else self._config.grace_s
        told_at = now if result.signum else None
        self._standing.departure = Departure(result, now + wait_s, now, told_at, all_leave=all_leave, saves=saves)
        what = "works on until the others can go on without it" if goes_on else "stops after a step, to save"
        self._effects.note(f"told to leave: this node {what}")

    def _others_may_go_on(self) -> bool:
        """Whether the others can go on in a smaller world when this node leaves."""
        record = self._standing.record
        return (
            record is not None
            and record.phase is Phase.SEALED
            and self._standing.is_placed
            and not record.finishing
            and len(record.members) > record.settings.min_nodes
            and self._answers.to(Trigger.SCALE_DOWN) is Response.PAUSE_MEET_WORK
        )

    # --- what the record says of it

    def see_off(self, leaving: Departure, round_: Round, now: float) -> None:
        """The others have a world without this node."""
        if self._stages.stage is Stage.WORKING and round_.phase is Phase.SEALED and round_.leave_after:
            leaving.seen_off = True
            alone = Preemption(reason=leaving.reason, after=round_.leave_after, seconds=leaving.until - now, alone=True)
            self._effects += self._workers.pause(WorldChangeEvent.SCALE_DOWN, now, round_.leave_after, preemption=alone)
        else:
            self._leave(leaving, now)

    def preempted(self, preemption: Preemption, now: float) -> None:
        """All leave for good: by when, if this was not known before."""
        leaving = self._standing.departure
        if self._stages.stage not in (Stage.WAITING, Stage.WORKING, Stage.RESTARTING):
            return
        if leaving is None or not leaving.preempted:
            since, told_at, signum = (now, None, 0)
            if leaving is not None:
                since, told_at, signum = leaving.since, leaving.told_at, leaving.result.signum
            until = min(now + preemption.seconds, since + self._config.grace_s)
            result = Result(Outcome.PREEMPTED, preemption.reason, signum=signum)
            self._standing.departure = Departure(result, until, since, told_at, saves=True, preempted=True)
            self._workers.ends_at = until
            self._effects.note(f"the job leaves ({preemption.reason}): {until - now:.1f} s to save", warning=True)

    def tell_workers(self, round_: Round, now: float) -> None:
        """The workers stop in the world that they are in, if it is one that stops."""
        told = self._workers.told
        here = self._stages.stage is Stage.WORKING and told is not None and told.number == round_.number
        if here and round_.preemption is not None:
            self._effects += self._workers.preempt(round_.preemption, now)

    # --- it goes

    def advance(self, expelled: bool, now: float) -> None:
        """Do what is due. `expelled`: nobody waits for nodes that leave."""
        if self._time_up_at is not None and now >= self._time_up_at:
            self._time_up_at = None
            self._time_is_up(now)
        leaving = self._standing.departure
        stage = self._stages.stage
        if leaving is None or stage not in (Stage.WAITING, Stage.WORKING, Stage.RESTARTING):
            return
        needed = stage is Stage.WORKING or (leaving.saves and stage is Stage.WAITING)
        if leaving.is_due(needed=needed, has_left=self._workers.has_left(), expelled=expelled, now=now):
            self._leave(leaving, now)

    def _time_is_up(self, now: float) -> None:
        if self._stages.stage in (Stage.WAITING, Stage.WORKING, Stage.RESTARTING) and self._standing.departure is None:
            reason = f"the time limit of {self._config.time_limit_s:g} s"
            self._begin(Result(Outcome.PREEMPTED, reason), now, all_leave=True)

    def _leave(self, leaving: Departure, now: float) -> None:
        over = leaving.preempted or leaving.until >= leaving.since + self._config.grace_s
        late = leaving.saves and over and now >= leaving.until and self._stages.stage is not Stage.RESTARTING
        signum = leaving.result.signum or SIGTERM
        stands = self._standing.is_placed and not self._others_may_go_on()
        if late:
            self._effects.note("the time to save is over: the workers that have not ended are killed", warning=True)
            self._stages.leave(Result(Outcome.SIGNALLED, signum=signum), now, SIGKILL)
        else:
            self._stages.leave(leaving.result, now, signum, stands=stands)

    def result(self) -> Result:
        """The result of a node whose workers have all ended: well, or by a failure that others go on without."""
        leaving, record = self._standing.departure, self._standing.record
        if self._stages.verdict.stands:
            return self._stages.workers_failed()
        if not self._workers.have_left() or record is None or record.preemption is None:
            return Result(Outcome.SUCCEEDED)
        signum = leaving.result.signum if leaving is not None else 0
        return Result(Outcome.PREEMPTED, record.preemption.reason, signum=signum)
