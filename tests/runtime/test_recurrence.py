"""Which faults are tried once more, and which are raised."""

from __future__ import annotations

import logging

import pytest

from fake_agent import an_event
from softrun.runtime.events import WorldChangeEvent
from softrun.runtime.recurrence import MOST_IN_VAIN, Place, Recurrence

NEXT = an_event(2)  # of the same members, after world 1
SMALLER = NEXT.model_copy(update={"change_event": WorldChangeEvent.SCALE_DOWN, "lost": (1,)})


def timed_out(ms: int = 4000) -> Exception:
    return RuntimeError(f"[unbound_buffer.cc:129] Timed out waiting {ms}ms for recv operation to complete")


def test_the_same_fault_at_the_same_step_is_raised_once_it_is_known_that_nobody_was_lost() -> None:
    """Rank 0 evaluates for longer than a collective may take, in each world."""
    recurrence = Recurrence()
    recurrence.leaves(1, timed_out(4000), Place(10, 10))
    recurrence.enters(NEXT)
    recurrence.leaves(1, timed_out(4001), Place(10, 10))
    with pytest.raises(RuntimeError, match="4001ms"):
        recurrence.enters(NEXT)


def test_a_fault_with_nobody_lost_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    recurrence = Recurrence()
    with caplog.at_level(logging.WARNING):
        recurrence.leaves(1, RuntimeError("Timed out waiting\nframe #0"), Place(None, 0))
        recurrence.enters(NEXT)
    (record,) = caplog.records
    assert record.getMessage().startswith("worker 0 left its last world by RuntimeError: Timed out waiting, though")


@pytest.mark.parametrize("counts", [True, False], ids=["counting steps", "without steps"])
def test_who_comes_further_may_have_the_same_fault_again(counts: bool) -> None:
    """A firewall that resets connections every hour."""
    recurrence = Recurrence()
    for hour in range(1, 2 * MOST_IN_VAIN):
        recurrence.leaves(1, timed_out(), Place(10 * hour, 10) if counts else Place(None, 10 + hour % 3))
        recurrence.enters(NEXT)


def test_what_a_lost_peer_has_caused_does_not_count() -> None:
    recurrence = Recurrence()
    for _ in range(2 * MOST_IN_VAIN):
        recurrence.leaves(1, timed_out(), Place(10, 10))
        recurrence.enters(SMALLER)


def test_a_fault_before_a_loss_does_not_count_after_it() -> None:
    recurrence = Recurrence()
    recurrence.leaves(1, timed_out(), Place(None, 0))
    recurrence.enters(NEXT)
    recurrence.leaves(1, None, Place(None, 0))
    recurrence.enters(SMALLER)
    recurrence.leaves(1, timed_out(), Place(None, 0))
    recurrence.enters(NEXT)


def test_any_faults_that_bring_world_after_world_without_a_step_are_raised() -> None:
    """On each rank another collective is the first to fail, and others come first in some worlds."""
    recurrence = Recurrence()
    for attempt in range(MOST_IN_VAIN - 1):
        recurrence.leaves(1, RuntimeError("gloo: " + "x" * attempt) if attempt % 2 else None, Place(None, 0))
        recurrence.enters(NEXT)
    recurrence.leaves(1, last := RuntimeError("gloo: something else"), Place(None, 0))
    with pytest.raises(RuntimeError) as raised:
        recurrence.enters(NEXT)
    assert raised.value is last


def test_who_has_missed_a_world_does_not_know_that_nobody_was_lost() -> None:
    """World 2 was without the lost one, and is over; world 3 has the members of world 2."""
    recurrence = Recurrence()
    for _ in range(2 * MOST_IN_VAIN):
        recurrence.leaves(1, timed_out(), Place(None, 0))
        recurrence.enters(an_event(3))
