"""The watch over one worker: when it is looked at, and what is made of what is seen."""

from __future__ import annotations

import pytest

from softrun.agent.core.progress_watchdog import FREED_S, LEAVE, ProgressWatchdog
from softrun.runtime.events import ProgressLimits

BOTH = ProgressLimits(soft=2.0, hard=10.0)


def watch(limits: ProgressLimits = BOTH, since: float = 100.0) -> ProgressWatchdog:
    return ProgressWatchdog(limits, since)


def test_it_looks_when_the_next_limit_would_have_passed() -> None:
    watched = watch()
    assert watched.deadline() == 102.0
    assert watched.progressed(100.0, 102.0)
    assert watched.deadline() == 110.0
    assert watched.progressed(100.0, 110.0)
    assert watched.deadline() is None


def test_a_limit_passes_once() -> None:
    watched = watch()
    assert watched.progressed(100.0, 102.0)
    assert not watched.progressed(100.0, 103.0)


def test_one_progress_whose_time_is_read_twice_is_one() -> None:
    watched = watch()
    assert watched.progressed(100.0, 102.0)
    assert not watched.progressed(100.000005, 102.1)
    assert watched.deadline() == 110.0


def test_with_progress_all_begins_anew() -> None:
    watched = watch()
    watched.progressed(100.0, 102.0)
    assert not watched.progressed(103.0, 104.0)
    assert watched.deadline() == 105.0
    assert watched.progressed(103.0, 105.0)


def test_what_was_seen_of_old_is_not_forgotten_for_something_older() -> None:
    watched = watch()
    watched.progressed(103.0, 104.0)
    watched.progressed(101.0, 104.5)
    assert watched.since == 103.0


def test_two_limits_that_pass_unseen_are_one_piece_of_news() -> None:
    watched = watch()
    assert watched.progressed(100.0, 200.0)
    assert watched.overdue(200.0)
    assert watched.deadline() is None


def test_without_limits_nobody_looks() -> None:
    watched = watch(ProgressLimits())
    assert watched.deadline() is None
    assert not watched.progressed(0.0, 1e6)
    assert not watched.stalls(1e6)
    assert not watched.overdue(1e6)


def test_new_limits_hold_from_now_on() -> None:
    watched = watch()
    watched.progressed(100.0, 102.0)
    watched.apply(ProgressLimits(soft=5.0), 103.0)
    assert watched.deadline() == 108.0
    watched.apply(ProgressLimits(soft=5.0), 106.0)
    assert watched.deadline() == 108.0, "the same ones change nothing"


def test_in_a_new_world_what_was_done_may_be_done_again() -> None:
    watched = watch()
    watched.progressed(100.0, 102.0)
    watched.begin()
    assert watched.deadline() == 102.0
    assert watched.progressed(100.0, 102.5)


def test_who_was_told_to_leave_has_limits_whatever_his_own() -> None:
    watched = watch(ProgressLimits())
    watched.leave(200.0)
    assert watched.deadline() == 200.0 + (LEAVE.soft or 0)
    assert not watched.stalls(209.0)
    assert watched.stalls(210.0)
    assert not watched.overdue(259.0)
    assert watched.overdue(260.0)
    watched.left()
    assert watched.deadline() is None
    assert not watched.overdue(1000.0)


def test_he_is_told_once_and_progress_counts_there_too() -> None:
    watched = watch(ProgressLimits())
    watched.leave(200.0)
    watched.leave(205.0)
    assert watched.deadline() == 210.0
    watched.progressed(208.0, 210.0)
    assert watched.deadline() == 218.0


def test_of_two_limits_the_earlier_holds() -> None:
    watched = watch(ProgressLimits(soft=500.0, hard=600.0))
    watched.leave(200.0)
    assert watched.deadline() == 210.0
    short = watch(ProgressLimits(soft=1.0, hard=600.0))
    short.leave(100.0)
    assert short.deadline() == 101.0


@pytest.mark.parametrize("limits", [ProgressLimits(hard=3.0), ProgressLimits(soft=5.0, hard=3.0)])
def test_a_hard_limit_is_a_soft_one_first(limits: ProgressLimits) -> None:
    watched = watch(limits)
    assert watched.deadline() == 103.0
    assert watched.progressed(100.0, 103.0)
    watched.leave(103.0)
    assert watched.stalls(103.1)
    assert not watched.overdue(103.1)
    assert watched.deadline() == 103.0 + FREED_S
    assert watched.overdue(103.0 + FREED_S)


def test_if_its_world_is_not_broken_it_may_take_its_time_but_is_not_ended_at_once() -> None:
    watched = watch(ProgressLimits(soft=30.0, hard=60.0))
    watched.leave(159.0, broken=False)
    assert not watched.overdue(160.0)
    assert watched.overdue(159.0 + FREED_S)
    late = watch(ProgressLimits())
    late.leave(200.0, broken=False)
    assert late.deadline() is None
    late.leave(205.0)
    assert late.deadline() == 205.0 + (LEAVE.soft or 0)


def test_where_nobody_is_told_to_leave_a_hard_limit_holds_at_once() -> None:
    assert watch(ProgressLimits(hard=3.0)).overdue(103.0)
