"""Worlds that end one after the other before any worker completes a step: they converge, or the job ends.

A death while ranks build their groups ends their world; the arrival of the replacement ends the next one, and so on. So
the leader counts these worlds (`Round.stepless`), and with each of them in a row it waits longer before the next one:

- after a loss, for further losses close to it: 0.05 s, 0.1, 0.2, … at most 2 s. Meanwhile the survivors wait;
- after a fault, or if a world is broken and nobody is lost: the same, but at most 10 s;
- before newcomers interrupt those that build: 0.25 s, 0.5, 1, … at most 10 s, or until a step is completed.

The first such world costs nothing. A world in which a step was completed, or that has stood for `STOOD_S`, resets the
count. After `MOST_STEPLESS` in a row the job ends, with one line that names the last cause. So no job has more
worlds than that in a row without a step, and from the eighth on they are at least 2 s apart. A job that is finishing
does not end this way: nobody joins it any more, so it has no more worlds than workers.
"""

from __future__ import annotations

from dataclasses import replace

from softrun.agent.protocol.model import Phase, Round
from softrun.agent.rendezvous import ranks
from softrun.agent.rendezvous.decisions import Decision
from softrun.agent.rendezvous.transitions import close
from softrun.runtime.events import headline

MOST_STEPLESS = 50
"""After how many worlds in a row without a step the job ends."""
LOSS_S, MOST_LOSS_S = 0.05, 2.0
FAULT_S, MOST_FAULT_S = 0.05, 10.0
GROWTH_S, MOST_GROWTH_S = 0.25, 10.0
STOOD_S = 20.0
"""After how many seconds a world counts as one that works, even if its workers do not show it."""


class Convergence:
    """Paces one leader's proposals. It holds the times; the count of worlds is in the record, for the next leader."""

    def __init__(self) -> None:
        self._worked = 0  # the last world in which a step is known to have been completed
        self._world = (0, 0.0)  # the present one, and when it was first seen
        self._wanted = (0, 0.0)  # the edition of the record that another is to follow, and since when

    def worked_in(self, number: int) -> bool:
        """Note that a step was completed in this world; returns whether that is news."""
        news, self._worked = number != self._worked, number
        return news

    def pace(self, round_: Round, decision: Decision, now: float) -> Decision:
        """Return `decision` with the new count of worlds if its time has come, else one that waits until `again_at`.

        Once `MOST_STEPLESS` worlds in a row had no step, it is one that closes the job. `now` is in seconds.
        """
        if self._world[0] != round_.number:
            self._world = (round_.number, now)
        if decision.proposal is None and not decision.asks_barrier:
            if decision.again_at is None:
                self._wanted = (0, 0.0)
            return decision
        if self._wanted[0] != round_.edition:
            self._wanted = (round_.edition, now)
        is_open = round_.phase is Phase.OPEN
        if not is_open and self._has_worked(round_, now):
            return _counted(decision, 0)
        if decision.proposal is not None and not _ends(round_, decision.proposal):
            return _counted(decision, round_.stepless)
        if round_.stepless >= MOST_STEPLESS and not round_.finishing:
            return Decision(decision.reason, close(round_, _why(decision)))
        due = self._wanted[1] + _wait_s(round_, decision)
        if now < due:
            return Decision(f"{decision.reason}; {round_.stepless} worlds before it had no step either", again_at=due)
        return _counted(decision, round_.stepless + (not is_open))  # the world before an OPEN round has been counted

    def _has_worked(self, round_: Round, now: float) -> bool:
        return self._worked == round_.number or now - self._world[1] >= STOOD_S


def _counted(decision: Decision, stepless: int) -> Decision:
    if decision.proposal is None or decision.proposal.phase is Phase.CLOSED:
        return decision
    return replace(decision, proposal=replace(decision.proposal, stepless=stepless))


def _ends(round_: Round, proposal: Round) -> bool:
    """Return whether the proposal ends this world."""
    return proposal.phase is Phase.OPEN or proposal.number > round_.number


def _wait_s(round_: Round, decision: Decision) -> float:
    if not round_.stepless:
        return 0.0
    twice = 2.0 ** (round_.stepless - 1)
    proposal = decision.proposal
    if proposal is not None and (round_.phase is Phase.OPEN or ranks.shrunk(round_, proposal)):
        return min(MOST_LOSS_S, LOSS_S * twice)
    if proposal is None or ranks.grown(round_, list(proposal.members)):
        return min(MOST_GROWTH_S, GROWTH_S * twice)
    return min(MOST_FAULT_S, FAULT_S * twice)


def _why(decision: Decision) -> str:
    fault = decision.proposal.fault if decision.proposal is not None else None
    cause = headline(fault.text) if fault is not None and fault.text else decision.reason
    return f"{MOST_STEPLESS} worlds in a row ended before anybody completed a step, the last because: {cause}"
