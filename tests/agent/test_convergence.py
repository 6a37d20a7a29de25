"""How long a leader waits, and when it gives up, where worlds end before anybody has completed a step in them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from values import STORE, member, sealed

from softrun.agent.protocol.model import Member, Phase, Round
from softrun.agent.rendezvous import transitions
from softrun.agent.rendezvous.convergence import (
    FAULT_S,
    GROWTH_S,
    LOSS_S,
    MOST_FAULT_S,
    MOST_GROWTH_S,
    MOST_LOSS_S,
    MOST_STEPLESS,
    STOOD_S,
    Convergence,
)
from softrun.agent.rendezvous.decisions import Decision
from softrun.runtime.events import WorkerFault

A, B, C = (member(name) for name in "abc")


def world(stepless: int) -> Round:
    return replace(sealed(A, B), stepless=stepless)


def next_of(round_: Round, *members: Member, fault: WorkerFault | None = None) -> Decision:
    return Decision("because", transitions.seal(round_, list(members), STORE, (), fault))


def stepless(decision: Decision) -> int:
    assert decision.proposal is not None, decision.reason
    return decision.proposal.stepless


def test_the_first_world_without_a_step_ends_at_once_and_is_counted() -> None:
    assert stepless(Convergence().pace(world(0), next_of(world(0), A), 5.0)) == 1


@pytest.mark.parametrize(
    ("after", "first_s", "most_s"),
    [((A,), LOSS_S, MOST_LOSS_S), ((A, B), FAULT_S, MOST_FAULT_S), ((A, B, C), GROWTH_S, MOST_GROWTH_S)],
    ids=["a loss", "a fault", "growth"],
)
def test_with_each_world_in_a_row_the_wait_is_twice_as_long(
    after: tuple[Member, ...], first_s: float, most_s: float
) -> None:
    for count in range(1, MOST_STEPLESS):
        convergence, round_ = Convergence(), world(count)
        waits = convergence.pace(round_, next_of(round_, *after), 0.0)
        assert waits.proposal is None
        assert waits.again_at == min(most_s, first_s * 2.0 ** (count - 1))
        assert stepless(convergence.pace(round_, next_of(round_, *after), waits.again_at)) == count + 1


def test_ranks_are_not_asked_to_wait_for_a_newcomer_that_has_to_wait_itself() -> None:
    decision = Convergence().pace(world(3), Decision("agreeing on a step", again_at=9.0, asks_barrier=True), 0.0)
    assert (decision.asks_barrier, decision.again_at) == (False, 4 * GROWTH_S)


def test_a_wait_ends_with_what_it_was_for() -> None:
    convergence, round_ = Convergence(), world(3)
    assert convergence.pace(round_, next_of(round_, A, B, C), 0.0).again_at == 4 * GROWTH_S
    convergence.pace(round_, Decision("nothing to do"), 0.5)
    assert convergence.pace(round_, next_of(round_, A, B, C), 0.9).again_at == 0.9 + 4 * GROWTH_S


def test_a_step_begins_the_count_anew_and_ends_all_waits() -> None:
    convergence, round_ = Convergence(), world(7)
    assert convergence.pace(round_, next_of(round_, A, B, C), 0.0).proposal is None
    assert convergence.worked_in(round_.number)
    assert not convergence.worked_in(round_.number), "no news"
    assert stepless(convergence.pace(round_, next_of(round_, A, B, C), 0.1)) == 0


def test_so_does_a_world_that_has_stood_for_long() -> None:
    convergence, round_ = Convergence(), world(7)
    convergence.pace(round_, Decision("nothing to do"), 1.0)
    assert convergence.pace(round_, next_of(round_, A), STOOD_S).proposal is None
    assert stepless(convergence.pace(round_, next_of(round_, A), 1.0 + STOOD_S)) == 0


def test_what_changes_the_record_and_not_the_world_changes_no_count() -> None:
    decision = Convergence().pace(world(7), Decision("a node has finished", transitions.admit_nobody(world(7))), 0.0)
    assert stepless(decision) == 7


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (None, "because"),
        (WorkerFault(round=1, text="fault of rank 1: Traceback\n  a line\nValueError: no data"), "ValueError: no data"),
    ],
)
def test_after_too_many_the_job_ends_with_the_last_cause(fault: WorkerFault | None, cause: str) -> None:
    round_ = world(MOST_STEPLESS)
    closed = Convergence().pace(round_, next_of(round_, A, B, fault=fault), 0.0).proposal
    assert closed is not None
    assert closed.phase is Phase.CLOSED
    assert closed.outcome.endswith(cause)
    assert "\n" not in closed.outcome
