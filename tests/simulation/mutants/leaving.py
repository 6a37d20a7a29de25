"""Steps after which all leave together: to a new world, or for good."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Patch, mutant
from softrun.agent.core.departures import Departures
from softrun.agent.core.step_barrier import StepBarrier
from softrun.agent.core.worker_slot import WorkerSlot
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.model import (
    BarrierAnswer,
    Round,
)
from softrun.agent.rendezvous import decisions, transitions
from softrun.runtime.events import Preemption


@mutant("LeaveTogether")
def holds_workers_a_step_too_late() -> list[Patch]:
    right = StepBarrier.answer

    def wrong(self: StepBarrier) -> BarrierAnswer | None:
        for held in self._held.values():
            held.sure = held.sure or held.told is not None
        return right(self)

    return [(StepBarrier, "answer", wrong)]


@mutant("LeaveTogether")
def agrees_on_the_least_step() -> list[Patch]:
    right = decisions._between_steps

    def wrong(case: Any, *rest: Any) -> decisions.Decision:
        decision = right(case, *rest)
        if decision.proposal is None or not decision.proposal.leave_after:
            return decision
        holds = [case.reports[m.node].barrier_answer for m in case.round.members]
        least = min(hold.first for hold in holds if hold is not None)
        return replace(decision, proposal=replace(decision.proposal, leave_after=least))

    return [(decisions, "_between_steps", wrong)]


@mutant("LeaveTogether")
def saves_after_the_least_step() -> list[Patch]:
    right = decisions._between_steps

    def wrong(case: Any, reason: str, after: Any, patience_s: float) -> decisions.Decision:
        holds = [case.reports[m.node].barrier_answer for m in case.round.members]
        least = min((hold.first for hold in holds if hold is not None), default=0)
        return right(case, reason, lambda step: after(min(step, least)), patience_s)

    return [(decisions, "_between_steps", wrong)]


@mutant("OnceEach", "SavedTogether")
def forgets_that_all_leave() -> list[Patch]:
    return [(transitions, "_at_once", lambda preemption: None)]


@mutant("Size", "SavedTogether")
def admits_newcomers_to_a_job_that_leaves() -> list[Patch]:
    def wrong(round_: Round, preemption: Preemption) -> Round:
        return replace(right(round_, preemption), finishing=round_.finishing)

    def wrong_world(round_: Round, preemption: Preemption) -> Round:
        return replace(right_world(round_, preemption), finishing=round_.finishing)

    right, right_world = transitions.preempt, transitions.preempted
    return [(transitions, "preempt", wrong), (transitions, "preempted", wrong_world)]


@mutant("Progress")
def never_stops_a_whole_job() -> list[Patch]:
    return [(decisions, "_PHASES", tuple(p for p in decisions._PHASES if p is not decisions._the_job_is_told_to_leave))]


@mutant("Progress")
def takes_a_leave_for_a_failure() -> list[Patch]:
    def wrong(self: WorkerSlot, exitcode: int) -> do.Failure | None:
        self.left = False
        return right(self, exitcode)

    right = WorkerSlot.exited
    return [(WorkerSlot, "exited", wrong)]


@mutant(test="test_engine.py::test_a_stop_that_is_repeated_is_no_hurry")
def takes_a_repeated_signal_for_impatience() -> list[Patch]:
    return [(Departures, "_is_impatient", lambda self, signum, is_first, now: not is_first)]


@mutant("Progress")
def sees_off_one_after_the_other() -> list[Patch]:
    return [(decisions, "_more_may_leave", lambda case: None)]


@mutant("Progress")
def goes_on_without_those_that_leave_with_all() -> list[Patch]:
    def wrong(self: Any) -> list[str]:
        return [m.node for m in self.living if self.reports[m.node].leaving]

    return [(decisions._Case, "leaving", property(wrong))]


@mutant("SoftSparesTheHealthy", "Progress")
def gives_no_time_to_save() -> list[Patch]:
    def wrong(self: Departures, preemption: Preemption, now: float) -> None:
        right(self, preemption.model_copy(update={"seconds": 0.01}), now)

    right = Departures.preempted
    return [(Departures, "preempted", wrong)]
