"""What a leader decides when nodes are told to leave, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest
from values import JOB, STORE, member, opened, ready, sealed

from softrun.agent.flags import duration
from softrun.agent.protocol.model import BarrierAnswer, Report, Round
from softrun.agent.rendezvous import decision_cache, decisions, member_status, transitions
from softrun.agent.rendezvous.decisions import Decision, LeaderTimeouts, LeaderTimers
from softrun.agent.rendezvous.leader import Leader
from softrun.agent.rendezvous.liveness import Liveness
from softrun.runtime.events import Preemption, WorkerFault

TIMEOUTS = LeaderTimeouts(
    last_call_s=0.3, broken_s=0.5, barrier_s=5.0, stopping_s=5.0, together_s=0.3, gives_up_s=10.0, save_s=4.0
)
HARD = replace(TIMEOUTS, barrier_s=0.0)
A, B, C = (member(name) for name in "abc")
TWO = replace(JOB, min_nodes=2)


def told(who: str = "", step: int = 0, leave_s: float = 30.0, all_leave: bool = False, **changes: object) -> Report:
    """Of a node whose workers heed, which was told to leave; with the step after which its workers wait, if any."""
    answer = BarrierAnswer((2, 0), step, step, True, 0.1) if step else None
    return ready(
        member(who),
        heeds=True,
        leaving=True,
        leave_s=leave_s,
        all_leave=all_leave,
        reason="signal 15",
        barrier_answer=answer,
        **changes,
    )


def heeds(who: str, step: int = 0, **changes: object) -> Report:
    return replace(told(who, step), leaving=False, leave_s=0.0, reason="", **changes)  # type: ignore[arg-type]


def decide(
    round_: Round,
    *reports: Report,
    dead: str = "",
    now: float = 0.0,
    timers: LeaderTimers | None = None,
    timeouts: LeaderTimeouts = TIMEOUTS,
    leader: str = "",
) -> Decision:
    heard, timers = {report.member.node: report for report in reports}, timers or LeaderTimers()
    return decisions.decide(round_, heard, set(dead.split()), STORE, timeouts, timers, now, leader=leader)


def test_all_stop_after_the_step_that_all_can_reach() -> None:
    assert decide(sealed(A, B), told("a"), told("b")).asks_barrier
    decision = decide(sealed(A, B), told("a", 7, leave_s=20), told("b", 9))
    assert decision.proposal == transitions.preempt(
        sealed(A, B), Preemption(reason="signal 15", after=9, seconds=20)
    ), "the least time counts"
    assert decision.proposal.finishing
    assert decision.proposal.number == 1, "the world stays"


def test_too_few_would_be_left() -> None:
    world = sealed(A, B, job=TWO)
    assert decide(world, heeds("a", 7), told("b", 7)).proposal == transitions.preempt(
        world, Preemption(reason="signal 15", after=7, seconds=30)
    )


def test_a_newcomer_takes_the_place_of_the_one_that_leaves() -> None:
    timers = LeaderTimers(leaving_since=-1.0)
    decision = decide(sealed(A, B, job=TWO), heeds("a", 7), told("b", 7), ready(C), timers=timers)
    assert decision.proposal is not None
    assert [m.node for m in decision.proposal.members] == ["a", "c"]


def test_newcomers_alone_would_have_nothing_to_go_on_from() -> None:
    decision = decide(sealed(A, B), told("a", 7), told("b", 7), ready(C))
    assert decision.proposal is not None
    assert decision.proposal.preemption is not None
    assert [m.node for m in decision.proposal.members] == ["a", "b"]


def test_it_waits_whether_others_are_told_before_it_sees_one_off() -> None:
    timers, reports = LeaderTimers(), (heeds("a", 7), told("b", 7))
    decision = decide(sealed(A, B), *reports, timers=timers)
    assert (decision.proposal, decision.again_at) == (None, 0.3)
    decision = decide(sealed(A, B), *reports, timers=timers, now=0.3)
    assert decision.proposal is not None
    assert [m.node for m in decision.proposal.members] == ["a"]
    assert decision.proposal.preemption is None


def test_one_whose_workers_do_not_heed_is_seen_off_at_once() -> None:
    decision = decide(sealed(A, B), heeds("a", 7), replace(told("b", 7), heeds=False))
    assert decision.proposal is not None
    assert [m.node for m in decision.proposal.members] == ["a"]


def test_nobody_saves_if_some_do_not_heed() -> None:
    assert decide(sealed(A, B), told("a", 7), replace(told("b", 7), heeds=False)).expels_leavers


def test_a_time_limit_is_for_all() -> None:
    decision = decide(sealed(A, B), heeds("a", 7), told("b", 7, all_leave=True))
    assert decision.proposal is not None
    assert decision.proposal.preemption is not None


@pytest.mark.parametrize("timeouts", [TIMEOUTS, HARD])
def test_a_rank_that_counts_no_step(timeouts: LeaderTimeouts) -> None:
    answer = BarrierAnswer((2, 0), 0, 0, False)
    decision = decide(sealed(A), replace(told("a"), barrier_answer=answer), timeouts=timeouts)
    if timeouts is HARD:
        assert decision.expels_leavers, "its workers would begin anew in another world, and have nothing to save"
        return
    assert decision.proposal is not None
    assert decision.proposal.number == 2
    assert decision.proposal.preemption == Preemption(reason="signal 15", after=0, seconds=30)
    assert decision.proposal.finishing


@pytest.mark.parametrize(
    "reports",
    [
        (told("a", 7), told("b", 7, broken_round=1)),
        (told("a", 7), told("b", 7, fault=WorkerFault(round=1))),
        (told("a", 7),),
    ],
    ids=["broken", "fault", "dead"],
)
def test_a_world_that_is_over_is_not_waited_for(reports: tuple[Report, ...]) -> None:
    dead = "b" if len(reports) == 1 else ""
    decision = decide(sealed(A, B), *reports, dead=dead)
    assert decision.proposal is not None
    assert [m.node for m in decision.proposal.members] == ["a", "b"][: len(reports)]
    assert decision.proposal.preemption is not None
    assert decision.proposal.preemption.after == 0


def test_what_follows_is_told_to_leave_as_well() -> None:
    world = transitions.preempt(sealed(A, B, C, job=replace(JOB, min_nodes=3)), Preemption(reason="x", after=7))
    decision = decide(world, told("a"), told("b"), dead="c")
    assert decision.proposal is not None
    assert [m.node for m in decision.proposal.members] == ["a", "b"], "fewer than the minimum"
    assert decision.proposal.preemption == Preemption(reason="x", after=0)
    assert decide(world, told("a"), told("b"), told("c")).proposal is None
    assert decide(world, told("a"), told("b"), told("c"), ready(member("d"))).proposal is None, "nobody joins"


def test_a_leader_that_leaves_waits_whether_others_are_told_and_hands_over() -> None:
    world, timers = sealed(A, B, C), LeaderTimers()
    reports = told("a"), heeds("b"), heeds("c")
    assert decide(world, *reports, timers=timers, leader="a").again_at == 0.3
    decision = decide(world, *reports, timers=timers, leader="a", now=0.3)
    assert (decision.hands_over, decision.proposal, decision.asks_barrier) == (True, None, False)
    handed = told("a", hands_over=world.edition)
    assert member_status.goes_on(world, told("a"))
    assert not member_status.goes_on(world, handed)
    assert decide(world, handed, heeds("b"), heeds("c"), leader="b").asks_barrier, "that time is over already"
    assert decide(world, handed, told("b"), heeds("c"), leader="b").again_at == 0.3, "it was told as well"


def test_a_leader_that_leaves_leads_on_where_nobody_else_can() -> None:
    world, waited = sealed(A, B, job=TWO), LeaderTimers(leaving_since=-1.0)
    newcomer = decide(world, told("a", 7), told("b", 7), ready(C), timers=waited, leader="a")
    assert not newcomer.hands_over
    others = told("a", 7), heeds("b", 7, yields=world.edition)
    assert not decide(replace(world, settings=JOB), *others, timers=waited, leader="a").hands_over
    stops = transitions.preempt(world, Preemption())
    assert not decide(stops, told("a"), told("b"), leader="a").hands_over


def test_a_leader_without_which_too_few_are_left_waits_as_well_before_it_goes() -> None:
    world, timers = sealed(A, B, job=TWO), LeaderTimers()
    reports = replace(told("a"), heeds=False), replace(heeds("b"), heeds=False)
    assert decide(world, *reports, timers=timers, leader="a").again_at == 0.3
    assert decide(world, *reports, timers=timers, leader="a", now=0.3).expels_leavers
    both = reports[0], replace(told("b"), heeds=False)
    assert decide(world, *both, leader="a").expels_leavers, "all are told: nothing is waited for"
    assert decide(world, *reports, leader="b").expels_leavers, "it leads on itself"


def test_a_leader_whose_workers_do_not_heed_waits_as_well_before_it_hands_over() -> None:
    timers = LeaderTimers()
    reports = replace(told("a"), heeds=False), replace(heeds("b"), heeds=False)
    assert decide(sealed(A, B), *reports, timers=timers, leader="a").again_at == 0.3
    assert decide(sealed(A, B), *reports, timers=timers, leader="a", now=0.3).hands_over


def test_who_waits_for_too_few_saves_before_giving_up() -> None:
    timers, meeting = LeaderTimers(), opened(A, number=1, job=TWO)
    decision = decide(meeting, heeds("a"), timers=timers)
    assert (decision.proposal, decision.again_at) == (None, 10.0)
    decision = decide(meeting, heeds("a"), timers=timers, now=10.0)
    assert decision.proposal is not None
    assert decision.proposal.preemption == Preemption(reason="fewer than 2 nodes were there for 10 s", seconds=4.0)
    assert decide(opened(A, job=TWO), heeds("a"), timers=timers, now=10.0).proposal is None, "it has nothing yet"


def test_how_long_it_has_been_short_does_not_depend_on_who_leads() -> None:
    leadership = Leader("a", Liveness(1.0, 5.0, False), TIMEOUTS, 1.0)
    leadership.adopt(opened(A, B, number=1, job=TWO), 7.0)
    leadership.adopt(replace(opened(A, number=1, job=TWO), version=3), 12.0)
    leadership.lend(STORE)
    leadership.hear(heeds("a"))
    leadership.lead(replace(opened(A, number=1, job=TWO), version=3), 13.0)
    assert leadership.again_at == 17.0


def test_news_of_one_that_heeds_count_while_too_few_are_there() -> None:
    meeting = opened(A, B, number=1, job=replace(JOB, min_nodes=3))
    waits = decide(meeting, heeds("a"), replace(heeds("b"), heeds=False))
    assert not decision_cache.stands(waits, replace(heeds("b"), heeds=False), heeds("b"), 2, False)
    well = decide(sealed(A, B), heeds("a"), replace(heeds("b"), heeds=False))
    assert decision_cache.stands(well, replace(heeds("b"), heeds=False), heeds("b"), 2, False)


def test_a_worker_that_is_ready_while_all_save_comes_too_late() -> None:
    two = member("b", workers=2)
    one = replace(two, workers=two.workers[:1])
    world = transitions.preempt(sealed(A, one), Preemption(reason="x", after=7))
    assert decide(world, told("a"), replace(told("b"), member=two)).reason == "nothing to do"


def test_a_job_that_left_can_be_taken_over() -> None:
    left = transitions.preempt(sealed(A), Preemption(reason="x"))
    again = transitions.take_over(left, B, ("a",))
    assert (again.preemption, again.finishing) == (None, False)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("02:30", 150), ("1:00:00", 3600), ("2-01:00:00", 2 * 86400 + 3600), ("0:00", 0)],
)
def test_a_duration_is_read_as_schedulers_write_it(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "1:2:3:4", "-5", "1-30", "x-1:00:00", "1:-2", "1-", ":"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - argparse names the flag and the value
        duration(text)
