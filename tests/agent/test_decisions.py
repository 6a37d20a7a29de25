"""What a leader decides, row by row; how leaders follow each other is the simulation's business."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import JOB, STORE, following, known, member, of_job, opened, ready, sealed

from softrun.agent.protocol.model import NO_RECORD, BarrierAnswer, NodeIntent, Phase, Report, Round, Worker
from softrun.agent.rendezvous import decision_cache, decisions, member_status, transitions
from softrun.agent.rendezvous.decisions import Decision, LeaderTimeouts, LeaderTimers
from softrun.agent.rendezvous.member_status import MemberStatus
from softrun.runtime.events import WorkerFault

TIMEOUTS = LeaderTimeouts(last_call_s=0.3, broken_s=0.5, quiet_s=3.0)
A, B, C, D = (member(name) for name in "abcd")


def decide(
    round_: Round,
    *reports: Report,
    dead: str = "",
    now: float = 0.0,
    since: LeaderTimers | None = None,
    quiet: bool = False,
) -> Decision:
    heard = {report.member.node: report for report in reports}
    return decisions.decide(round_, heard, set(dead.split()), STORE, TIMEOUTS, since or LeaderTimers(), now, quiet)


def members(decision: Decision) -> list[str]:
    assert decision.proposal is not None, decision.reason
    return [m.node for m in decision.proposal.members]


# --- nothing to do


def test_a_world_that_is_whole_stays() -> None:
    assert decide(sealed(A, B), ready(A), ready(B)) == Decision("nothing to do")


def test_nothing_is_decided_before_every_member_was_heard_or_is_dead() -> None:
    assert decide(sealed(A, B, C), ready(A), ready(B)).reason == "waiting to hear from c"
    assert members(decide(sealed(A, B, C), ready(A), ready(B), dead="c")) == ["a", "b"]


def test_a_closed_job_stays_closed() -> None:
    closed = transitions.close(sealed(A), "")
    assert decide(closed, ready(A), ready(B)).proposal is None
    with pytest.raises(AssertionError, match="closed job"):
        transitions.seal(closed, [A], STORE, ())


# --- smaller worlds, at once


@pytest.mark.parametrize("intent", [NodeIntent.AWAY, NodeIntent.LEFT])
def test_who_withdraws_is_left_out_at_once_and_is_not_lost(intent: NodeIntent) -> None:
    decision = decide(sealed(A, B), ready(A), Report(B, intent))
    assert members(decision) == ["a"]
    assert decision.proposal is not None
    assert decision.proposal.lost == ()


def test_who_dies_is_lost() -> None:
    decision = decide(sealed(A, B), ready(A), ready(B), dead="b")
    assert members(decision) == ["a"]
    assert decision.proposal is not None
    assert decision.proposal.lost == ("b",)
    assert decision.proposal.number == 2


def test_who_has_become_another_incarnation_comes_last() -> None:
    again = member("a", incarnation=2)
    assert members(decide(sealed(A, B), ready(again), ready(B))) == ["b", "a"]


def test_a_report_of_an_earlier_life_than_the_record_says_is_never_used() -> None:
    assert member_status.status_of(member("a", incarnation=2), None, dead=False, record=None) is MemberStatus.UNHEARD


def test_newcomers_who_wait_fill_the_place_of_the_lost() -> None:
    job = replace(JOB, min_nodes=2, max_nodes=2)
    assert members(decide(sealed(A, B, job=job), ready(A), ready(B), ready(C), dead="b")) == ["a", "c"]


# --- too few


def test_below_the_minimum_the_rest_keep_their_place() -> None:
    job = replace(JOB, min_nodes=2)
    decision = decide(sealed(A, B, job=job), ready(A), ready(B), dead="b")
    assert decision.proposal is not None
    assert decision.proposal.phase is Phase.OPEN
    assert decision.proposal.number == 1
    assert members(decision) == ["a"]


def test_in_an_open_round_the_lost_are_dropped_too() -> None:
    job = replace(JOB, min_nodes=3)
    decision = decide(opened(A, B, number=1, job=job), ready(A), ready(B), dead="b")
    assert decision.proposal is not None
    assert decision.proposal.phase is Phase.OPEN
    assert decision.proposal.lost == ("b",)


def test_an_open_round_that_was_a_world_is_sealed_as_soon_as_enough_are_there() -> None:
    job = replace(JOB, min_nodes=2)
    assert members(decide(opened(A, number=1, job=job), ready(A), ready(B))) == ["a", "b"]


# --- larger worlds, after the last call


def test_the_first_world_waits_for_the_last_call() -> None:
    since = LeaderTimers()
    assert decide(opened(A), ready(A), ready(B), now=10.0, since=since).again_at == 10.3
    assert decide(opened(A), ready(A), ready(B), now=10.2, since=since).proposal is None
    assert members(decide(opened(A), ready(A), ready(B), now=10.3, since=since)) == ["a", "b"]


def test_a_full_world_waits_for_nobody_and_the_rest_queue() -> None:
    job = replace(JOB, max_nodes=2)
    assert members(decide(opened(A, job=job), ready(A), ready(B), ready(C))) == ["a", "b"]
    assert decide(sealed(A, B, job=job), ready(A), ready(B), ready(C)).proposal is None


def test_newcomers_are_admitted_in_the_order_in_which_they_came() -> None:
    job = replace(JOB, max_nodes=3)
    assert members(decide(sealed(A, job=job), ready(A), ready(D), ready(B), ready(C))) == ["a", "d", "b"]


def test_a_newcomer_joins_the_job_that_it_knows_and_no_other() -> None:
    """One that has another record would not enter the world, and all others would wait for it there."""
    world = of_job("a@1", sealed(A))
    for other in (NO_RECORD, known(2, "b@1"), following(world).id, replace(world, name="?").id):
        assert decide(world, ready(A, world.id), ready(B, other)).reason == "nothing to do"
    for same in (world.id, known(1, "a@1")):
        assert decide(world, ready(A, world.id), ready(B, same)).reason == "2 nodes, last call"


def test_a_world_has_a_higher_number_than_all_that_its_members_were_in() -> None:
    """A job that was founded anew has none to show, and their workers would take its first world for an old one."""
    after = decide(opened(A, number=1), ready(A, told=7), ready(B, told=4), dead="").proposal
    assert after is not None
    assert after.number == 8


def test_who_is_left_out_of_a_world_does_not_raise_its_number() -> None:
    job = replace(JOB, max_nodes=1)
    after = decide(opened(A, number=1, job=job), ready(A, told=1), ready(B, told=7)).proposal
    assert after is not None
    assert ([m.node for m in after.members], after.number) == (["a"], 2)


def test_nothing_follows_a_job_that_was_given_up() -> None:
    given_up = transitions.give_up(sealed(A, B), STORE)
    assert decide(given_up, ready(A), ready(B)).reason == "the job is over"


def test_a_newcomer_that_is_dead_is_no_newcomer() -> None:
    assert decide(sealed(A), ready(A), ready(B), dead="b").reason == "nothing to do"


# --- broken worlds


def test_a_broken_world_waits_for_the_loss_that_explains_it() -> None:
    since = LeaderTimers()
    reports = (ready(A), ready(B, broken_round=1))
    assert decide(sealed(A, B), *reports, now=1.0, since=since).again_at == 1.5
    assert members(decide(sealed(A, B), *reports, now=1.5, since=since)) == ["a", "b"]
    assert members(decide(sealed(A, B), *reports, dead="b", now=1.1, since=since)) == ["a"]


def test_while_a_member_is_quiet_a_broken_world_waits_for_longer() -> None:
    """The time that workers have ends before a silent member is dead: they have left their world by then."""
    since = LeaderTimers()
    reports = (ready(A), ready(B, broken_round=1), ready(C))
    assert decide(sealed(A, B, C), *reports, now=1.0, since=since, quiet=True).again_at == 1.5
    assert decide(sealed(A, B, C), *reports, now=2.0, since=since, quiet=True).again_at == 2.1
    assert members(decide(sealed(A, B, C), *reports, dead="c", now=2.05, since=since)) == ["a", "b"]
    assert decide(sealed(A, B, C), *reports, now=2.05, since=since).again_at == 2.1, "it may be about to say something"
    assert members(decide(sealed(A, B, C), *reports, now=2.1, since=since)) == ["a", "b", "c"]
    assert members(decide(sealed(A, B, C), *reports, now=4.0, since=since, quiet=True)) == ["a", "b", "c"], "no longer"


@pytest.mark.parametrize("asks", [True, False])
def test_one_that_exits_before_it_asks_is_missed_where_others_ask(asks: bool) -> None:
    finished = Report(B, NodeIntent.FINISHED, done=(0,), never_came=1)
    assert decide(sealed(A, B), ready(A, asks=asks), finished).reason == "a node has finished"
    decision = decide(replace(sealed(A, B), finishing=True, finished=(1,)), ready(A, asks=asks), finished)
    assert decision.reason.startswith("the world is broken" if asks else "nothing to do")


def test_a_world_that_was_given_up_needs_no_loss_to_explain_it() -> None:
    """Its members have promised to deliver nothing more there, so it is over, with or without the newcomer."""
    record = sealed(A, B)
    given_up = {"broken_round": record.number, "promised": record.version}
    assert members(decide(record, ready(A, **given_up), ready(B), ready(C))) == ["a", "b", "c"]
    assert members(decide(record, ready(A, **given_up), ready(B))) == ["a", "b"]
    found = ready(B, broken_round=record.number)
    assert decide(record, ready(A, **given_up), found, ready(C)).again_at == 0.5, "the groups of that one broke"
    earlier = ready(A, broken_round=record.number, promised=record.version - 1)
    assert decide(record, earlier, ready(B), ready(C)).again_at == 0.5


def test_a_world_that_was_broken_earlier_is_not_broken_now() -> None:
    assert decide(sealed(A, B, number=2), ready(A), ready(B, broken_round=1)).reason == "nothing to do"


def test_a_newcomer_cannot_break_a_world() -> None:
    job = replace(JOB, max_nodes=1)
    assert decide(sealed(A, job=job), ready(A), ready(B, broken_round=1)).reason == "nothing to do"


# --- faults


def fault(round_: int = 1, depth: int = 0, text: str = "") -> WorkerFault:
    return WorkerFault(round=round_, depth=depth, text=text)


def proposal(decision: Decision) -> Round:
    assert decision.proposal is not None, decision.reason
    return decision.proposal


def test_a_fault_waits_for_no_loss_that_would_explain_it() -> None:
    after = proposal(decide(sealed(A, B), ready(A), ready(B, fault=fault(text="why", depth=2))))
    assert (after.number, [m.node for m in after.members]) == (2, ["a", "b"])
    assert after.fault == fault(text="why", depth=2)


def test_a_fault_of_an_earlier_world_is_answered() -> None:
    assert decide(sealed(A, B, number=2), ready(A), ready(B, fault=fault(1))).reason == "nothing to do"


def test_a_newcomer_has_no_fault_of_this_world() -> None:
    job = replace(JOB, max_nodes=1)
    assert decide(sealed(A, job=job), ready(A), ready(B, fault=fault())).reason == "nothing to do"


def test_of_several_faults_the_outermost_wrapper_counts() -> None:
    reports = [ready(m, fault=fault(depth=depth)) for m, depth in ((A, 3), (B, 1), (C, 2))]
    assert proposal(decide(sealed(A, B, C), *reports)).fault == fault(depth=1)


@pytest.mark.parametrize("lost", [Report(B, NodeIntent.AWAY), None], ids=["away", "dead"])
def test_beside_a_loss_no_wrapper_is_named(lost: Report | None) -> None:
    reports = [ready(A, fault=fault(depth=2, text="why")), *([lost] if lost else [])]
    after = proposal(decide(sealed(A, B), *reports, dead="" if lost else "b"))
    assert [m.node for m in after.members] == ["a"]
    assert after.fault == fault(depth=0, text="why")


def test_a_loss_alone_is_no_fault() -> None:
    assert proposal(decide(sealed(A, B), ready(A), ready(B), dead="b")).fault is None


def test_newcomers_come_with_the_world_that_follows_a_fault_and_no_wrapper_is_named() -> None:
    after = proposal(decide(sealed(A), ready(A, fault=fault(depth=2)), ready(B)))
    assert ([m.node for m in after.members], after.fault) == (["a", "b"], fault(depth=0))


def test_so_does_a_worker_that_was_replaced() -> None:
    old, new = member("a", workers=1), member("a", workers=2)
    assert proposal(decide(sealed(old), ready(new, fault=fault(depth=2)))).fault == fault(depth=0)


def test_what_comes_next_does_not_repeat_the_fault() -> None:
    world = replace(sealed(A, B, number=2), fault=fault(1))
    assert proposal(decide(world, ready(A), ready(B), dead="b")).fault is None


# --- those who are not ready


def test_a_node_that_names_no_workers_is_no_newcomer() -> None:
    unready = replace(B, workers=())
    assert decide(sealed(A), ready(A), ready(unready)).reason == "nothing to do"
    assert members(decide(sealed(A, B), ready(A), ready(unready), ready(C), dead="b")) == ["a", "c"]


def test_it_is_not_counted_among_those_who_are_here() -> None:
    job = replace(JOB, min_nodes=2)
    assert decide(opened(A, number=1, job=job), ready(A), ready(replace(B, workers=()))).proposal is None


def test_a_member_that_names_no_workers_any_more_is_left_out_and_not_lost() -> None:
    after = proposal(decide(sealed(A, B), ready(A), ready(replace(B, workers=()))))
    assert ([m.node for m in after.members], after.lost) == (["a"], ())


def test_so_is_the_leader_itself() -> None:
    assert members(decide(sealed(A, B), ready(replace(A, workers=())), ready(B))) == ["b"]


def test_when_nobody_can_be_in_a_world_it_is_waited_for() -> None:
    assert decide(sealed(A), ready(replace(A, workers=()))).proposal is None


def test_a_reserve_that_is_ready_takes_a_lost_place() -> None:
    job = replace(JOB, max_nodes=2)
    assert decide(sealed(A, B, job=job), ready(A), ready(B), ready(C)).proposal is None
    assert members(decide(sealed(A, B, job=job), ready(A), ready(replace(B, workers=())), ready(C))) == ["a", "c"]


# --- the end


def test_the_first_to_finish_closes_the_door() -> None:
    decision = decide(sealed(A, B), ready(A), Report(B, NodeIntent.FINISHED, done=(0,)), ready(C))
    assert decision.proposal is not None
    assert decision.proposal.finishing
    assert members(decision) == ["a", "b"]


def test_when_all_have_finished_the_job_is_closed() -> None:
    finishing = sealed(A, B, finishing=True)
    done = [Report(m, NodeIntent.FINISHED, done=(0,)) for m in (A, B)]
    decision = decide(finishing, *done, dead="b")  # that its agent went away takes nothing from it
    assert decision.proposal is not None
    assert (decision.proposal.phase, decision.proposal.outcome) == (Phase.CLOSED, "")


@pytest.mark.parametrize("said", [{"intent": NodeIntent.FINISHED}, {"intent": NodeIntent.FAILED}, {"through": 1}])
def test_what_was_done_in_another_job_was_not_done_here(said: dict[str, object]) -> None:
    here, other = of_job("a@1", opened(A)), of_job("b@1", sealed(B))
    report = replace(ready(B, known=other.id), **said)
    assert decide(here, ready(A, known=here.id), report).reason == "1 node, last call"


def test_work_that_a_node_has_finished_is_not_begun() -> None:
    """It has come from a job that is no more, to one that was founded meanwhile."""
    here = of_job("a@1", opened(A))
    decision = decide(here, ready(A, known=here.id), Report(B, NodeIntent.FINISHED, here.id, done=(0,)))
    assert decision.proposal is not None
    assert (decision.proposal.phase, decision.proposal.outcome) == (Phase.CLOSED, "")


def test_a_failure_of_the_job_closes_it_with_the_reason() -> None:
    decision = decide(sealed(A, B), ready(A), Report(B, NodeIntent.FAILED, reason="b: exited with code 1"))
    assert decision.proposal is not None
    assert (decision.proposal.phase, decision.proposal.outcome) == (Phase.CLOSED, "b: exited with code 1")


def test_a_job_that_is_finishing_may_fall_below_the_minimum() -> None:
    job = replace(JOB, min_nodes=2)
    finishing = sealed(A, B, job=job, finishing=True)
    recorded = replace(finishing, finished=(1,))
    assert decide(recorded, ready(A), B_DONE).reason == "nothing to do"
    retired = replace(recorded, retired=(1,))
    assert decide(retired, ready(A), dead="b").reason == "nothing to do", "nobody who has heard it need be left"
    assert members(decide(finishing, ready(A), ready(B), dead="b")) == ["a"]


def test_who_has_finished_and_is_gone_is_retired() -> None:
    finishing = sealed(A, B, C, finishing=True)
    for record in (finishing, replace(finishing, finished=(1,))):
        proposal = decide(record, ready(A), B_DONE, ready(C), dead="b").proposal
        assert proposal is not None
        assert (proposal.number, proposal.finished, proposal.retired) == (finishing.number, (1,), (1,))
    retired = replace(finishing, finished=(1,), retired=(1,))
    assert decide(retired, ready(A), B_DONE, ready(C), dead="b").proposal is None


# --- whatever it has heard


some = st.builds(
    lambda name, incarnation, intent, broken: Report(
        member(name, incarnation),
        intent,
        done=(0,) if intent is NodeIntent.FINISHED else (),
        broken_round=broken,
    ),
    st.sampled_from("abcde"),
    st.integers(1, 2),
    st.sampled_from(NodeIntent),
    st.integers(0, 2),
)


@given(
    st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True),
    st.lists(some, max_size=6),
    st.sets(st.sampled_from("abcde")),
    st.booleans(),
    st.integers(1, 3),
)
def test_whatever_was_heard_the_next_record_is_sound(
    placed: list[str], reports: list[Report], dead: set[str], is_open: bool, least: int
) -> None:
    job = replace(JOB, min_nodes=least, max_nodes=4)
    make = opened if is_open else sealed
    round_ = make(*(member(name) for name in placed), number=1, job=job)
    heard = {report.member.node: report for report in reports}
    decision = decisions.decide(
        round_, heard, dead, STORE, TIMEOUTS, LeaderTimers(enough_since=-1, broken_since=-1), 9.0
    )
    after = decision.proposal
    if after is None:
        return
    assert after.version == round_.version + 1
    if after.phase is Phase.SEALED and after.number > round_.number:
        assert least <= len(after.members) <= 4
        assert not {m.node for m in after.members} & dead
        assert all(heard[m.node].intent is NodeIntent.READY for m in after.members)
        assert set(after.lost) <= dead


# --- between two steps

PAUSING = replace(TIMEOUTS, barrier_s=5.0)


def held(version: int, first: int, last: int) -> dict[str, object]:
    return {"barrier_answer": BarrierAnswer((version, 0), first, last, all=last > 0)}


def in_step(round_: Round, *reports: Report, since: LeaderTimers | None = None, now: float = 9.0) -> Decision:
    heard = {report.member.node: report for report in reports}
    waited = since or LeaderTimers(enough_since=0.0)
    return decisions.decide(round_, heard, set(), STORE, PAUSING, waited, now)


def test_a_world_that_grows_waits_for_the_step_that_all_can_reach() -> None:
    world = sealed(A, B)
    asking = in_step(world, ready(A), ready(B), ready(C))
    assert (asking.proposal, asking.asks_barrier, asking.again_at) == (None, True, 14.0)
    one = in_step(world, ready(A, **held(2, 7, 8)), ready(B, **held(1, 3, 3)), ready(C))
    assert (one.proposal, one.asks_barrier) == (None, True), "an answer about another record is none"
    agreed = in_step(world, ready(A, **held(2, 7, 8)), ready(B, **held(2, 8, 9)), ready(C))
    assert members(agreed) == ["a", "b", "c"]
    assert agreed.proposal is not None
    assert (agreed.proposal.leave_after, agreed.asks_barrier) == (9, True)


def test_they_go_on_while_all_are_told() -> None:
    telling = replace(PAUSING, telling_s=0.03)
    for step_s, leave_after in ((0.005, 9 + 6), (0.02, 9 + 1), (0.0301, 9), (0.0, 9)):
        answers = [
            ready(A, barrier_answer=BarrierAnswer((2, 0), 7, 8, all=True, step_s=step_s)),
            ready(B, barrier_answer=BarrierAnswer((2, 0), 8, 9, all=True, step_s=step_s / 2)),
        ]
        agreed = decisions.decide(
            sealed(A, B),
            {report.member.node: report for report in (*answers, ready(C))},
            set(),
            STORE,
            telling,
            LeaderTimers(enough_since=0.0),
            9.0,
        )
        assert agreed.proposal is not None
        assert agreed.proposal.leave_after == leave_after, "by the slowest"


def test_the_answer_to_a_hold_that_came_to_nothing_is_none_to_the_next() -> None:
    again = LeaderTimers(enough_since=0.0, attempts=1)
    stale = in_step(sealed(A, B), ready(A, **held(2, 7, 8)), ready(B, **held(2, 8, 9)), ready(C), since=again)
    assert (stale.proposal, stale.asks_barrier) == (None, True)


def test_it_does_not_wait_for_ever() -> None:
    late = in_step(sealed(A, B), ready(A), ready(B), ready(C), since=LeaderTimers(enough_since=0.0, barrier_since=4.0))
    assert late.proposal is not None
    assert late.proposal.leave_after == 0


def test_no_step_is_agreed_on_where_nobody_counts_or_not_all_alike() -> None:
    for answers in ((held(2, 0, 0), held(2, 0, 0)), (held(2, 3, 3), held(2, 500, 501))):
        decision = in_step(
            sealed(A, B), *(ready(m, **answer) for m, answer in zip((A, B), answers, strict=True)), ready(C)
        )
        assert decision.proposal is not None
        assert decision.proposal.leave_after == 0


def test_one_that_has_yet_to_count_is_waited_for() -> None:
    mixed = in_step(sealed(A, B), ready(A, **held(2, 7, 8)), ready(B, **held(2, 0, 0)), ready(C))
    assert (mixed.proposal, mixed.asks_barrier, mixed.unanswered) == (None, True, "b")


def test_a_loss_is_not_waited_for() -> None:
    heard = {"a": ready(A), "c": ready(C)}
    decision = decisions.decide(sealed(A, B, C), heard, {"b"}, STORE, PAUSING, LeaderTimers(), 0.0)
    assert members(decision) == ["a", "c"]
    assert not decision.asks_barrier


def test_who_leaves_is_done_without_after_the_step() -> None:
    world = sealed(A, B, C)
    reports = [ready(A, **held(2, 5, 5)), ready(B, leaving=True, **held(2, 5, 6)), ready(C, **held(2, 5, 5))]
    decision = in_step(world, *reports)
    assert members(decision) == ["a", "c"]
    assert decision.proposal is not None
    assert decision.proposal.leave_after == 6
    asking = in_step(world, ready(A), ready(B, leaving=True), ready(C))
    assert (asking.proposal, asking.asks_barrier) == (None, True)


def test_who_leaves_is_dismissed_where_too_few_would_be_left() -> None:
    pair = replace(JOB, min_nodes=2)
    decision = in_step(sealed(A, B, job=pair), ready(A), ready(B, leaving=True))
    assert (decision.proposal, decision.expels_leavers) == (None, True)
    replaced = in_step(sealed(A, B, job=pair), ready(A), ready(B, leaving=True), ready(C))
    assert (replaced.asks_barrier, replaced.expels_leavers) == (True, False), "the newcomer takes its place"


def test_who_leaves_is_no_newcomer() -> None:
    assert decide(sealed(A), ready(A), ready(B, leaving=True)) == Decision("nothing to do")


# --- which reports leave a decision as it is


@pytest.mark.parametrize(("minimum", "matters"), [(3, 3), (1, 4)])
def test_newcomers_below_the_minimum_or_during_the_last_call_change_nothing(minimum: int, matters: int) -> None:
    decision = decide(opened(A, job=replace(JOB, min_nodes=minimum)), ready(A))
    assert decision.crowd == matters
    assert decision_cache.stands(decision, None, ready(B), heard=matters - 1, missed=False)
    assert not decision_cache.stands(decision, None, ready(B), heard=matters, missed=False)
    assert not decision_cache.stands(decision, None, Report(B, NodeIntent.FAILED), heard=2, missed=False)


def test_until_the_last_was_heard_only_a_failure_counts() -> None:
    decision = decide(sealed(A, B, C), ready(A))
    assert decision.unheard == "c"
    assert decision_cache.stands(decision, None, ready(B), heard=2, missed=False)
    assert not decision_cache.stands(decision, None, ready(C), heard=2, missed=False)
    assert not decision_cache.stands(decision, None, Report(B, NodeIntent.FAILED), heard=2, missed=False)


def test_a_report_that_says_the_same_changes_nothing_unless_a_world_was_missed() -> None:
    decision = decide(sealed(A, B), ready(A), ready(B))
    before, again = ready(B, sequence=1), ready(B, sequence=2, since=1)
    assert decision_cache.stands(decision, before, again, heard=2, missed=False)
    assert not decision_cache.stands(decision, before, again, heard=2, missed=True)
    unasked = ready(B, asks=True, never_came=1)
    assert decision_cache.stands(decision, before, unasked, heard=2, missed=False)
    assert not decision_cache.stands(decision, before, unasked, heard=2, missed=True)
    assert not decision_cache.stands(decision, before, ready(B, broken_round=1), heard=2, missed=False)


def test_while_one_works_that_others_finish_changes_nothing() -> None:
    finishing = replace(sealed(A, B, C, D, finishing=True), finished=(0,))
    a, b, c, d = (Report(m, NodeIntent.FINISHED, done=(0,)) for m in (A, B, C, D))
    idle = decide(finishing, a, ready(B), ready(C), ready(D))
    assert (idle.again_at, idle.unfinished) == (None, ""), "the next one is to be recorded"
    timeouts = replace(TIMEOUTS, together_s=0.3)
    heard = {"a": a, "b": b, "c": ready(C), "d": ready(D)}
    waits = decisions.decide(finishing, heard, set(), STORE, timeouts, LeaderTimers(), 1.0, leader="d")
    assert (waits.again_at, waits.unfinished) == (1.3, "d"), "together with those that follow"
    assert decision_cache.stands(waits, ready(C), c, heard=4, missed=False)
    assert not decision_cache.stands(waits, ready(D), d, heard=4, missed=False)
    assert not decision_cache.stands(replace(waits, leader="c"), ready(C), c, heard=4, missed=False), "it leads"


def test_nodes_that_finish_together_are_recorded_together() -> None:
    finishing = replace(sealed(A, B, C, D, finishing=True), finished=(0,))
    b, c = (Report(m, NodeIntent.FINISHED, done=(0,)) for m in (B, C))
    heard = {"b": b, "c": c, "d": ready(D)}
    timeouts = replace(TIMEOUTS, together_s=0.3)
    timers = LeaderTimers(finished_since=1.0)
    assert decisions.decide(finishing, heard, set(), STORE, timeouts, timers, 1.2, leader="d").proposal is None
    for leader, now in (("d", 1.3), ("b", 1.2)):  # a leader that has finished does not lead any more after that
        decision = decisions.decide(finishing, heard, set(), STORE, timeouts, timers, now, leader=leader)
        assert decision.proposal is not None
        assert decision.proposal.finished_nodes == {"a", "b", "c"}


# --- where each new world begins all work again


def decide_hard(round_: Round, *reports: Report, dead: str = "", away: str = "") -> Decision:
    heard = {report.member.node: report for report in reports}
    timeouts = replace(TIMEOUTS, begins_again=True, broken_s=0.0)
    return decisions.decide(
        round_, heard, set(dead.split()), STORE, timeouts, LeaderTimers(), 0.0, leader="a", away=away
    )


TWO = replace(JOB, min_nodes=2, max_nodes=2)
HALF_DONE = replace(sealed(A, B, job=TWO, finishing=True), finished=(1,))
HALF_RETIRED = replace(HALF_DONE, retired=(1,))
B_DONE = Report(B, NodeIntent.FINISHED, done=(0,), told=1)


def test_under_hard_who_has_finished_works_again_with_the_others() -> None:
    decision = decide_hard(HALF_DONE, ready(A, broken_round=1), B_DONE)
    assert members(decision) == ["a", "b"]
    assert decision.proposal is not None
    assert (decision.proposal.finishing, decision.proposal.finished) == (False, ())
    again = decide_hard(decision.proposal, ready(A), B_DONE)  # it has not heard of it
    assert again == Decision("nothing to do")


def test_under_hard_who_has_finished_need_not_be_heard_again() -> None:
    assert members(decide_hard(HALF_DONE, ready(A, broken_round=1))) == ["a", "b"]


def test_under_hard_nothing_is_a_success_but_the_whole() -> None:
    lost = decide_hard(HALF_DONE, B_DONE, dead="a")
    assert lost.proposal is not None
    assert (lost.proposal.phase, members(lost)) == (Phase.OPEN, ["b"])
    assert decide_hard(lost.proposal, B_DONE).reason == "1 of at least 2 nodes are here"
    assert members(decide_hard(lost.proposal, B_DONE, ready(C))) == ["b", "c"]


def test_under_hard_the_job_ends_if_who_has_finished_is_missed_and_gone() -> None:
    assert decide_hard(HALF_RETIRED, ready(A), dead="b") == Decision("nothing to do")
    decision = decide_hard(HALF_RETIRED, ready(A, broken_round=1), dead="b")
    assert decision.proposal is not None
    assert decision.proposal.phase is Phase.CLOSED
    assert decision.proposal.outcome == "the work has to begin again on 2 nodes, but b has finished and gone"


def test_under_hard_a_new_leader_waits_to_hear_who_has_finished() -> None:
    """It is to work again if it is there."""
    decision = decide_hard(HALF_DONE, ready(A, broken_round=1), B_DONE, away="b")
    assert decision == Decision("waiting to hear from b, finished")
    assert members(decide_hard(HALF_DONE, ready(A, broken_round=1), B_DONE)) == ["a", "b"]


# --- faults that come together, and the end of the work


def told(text: str, wait_s: float = 0.0) -> WorkerFault:
    return WorkerFault(round=1, text=text, last_call_wait=wait_s)


def test_a_fault_waits_for_those_of_others_on_any_node_and_all_are_named() -> None:
    since = LeaderTimers()
    first = ready(A, fault=told("of a", wait_s=2.0))
    broken = ready(B, broken_round=1)  # its ranks have felt it, which needs no other explanation
    assert decide(sealed(A, B), first, broken, now=1.0, since=since).again_at == 3.0
    assert decide(sealed(A, B), first, broken, now=2.9, since=since).proposal is None
    proposal = decide(sealed(A, B), first, ready(B, fault=told("of b")), now=3.0, since=since).proposal
    assert proposal is not None
    assert proposal.fault is not None
    assert proposal.fault.text == "of a\nalso of b"


def test_a_loss_ends_the_wait_for_faults() -> None:
    assert members(decide(sealed(A, B), ready(A, fault=told("of a", wait_s=9.0)), dead="b")) == ["a"]


def test_when_those_that_worked_are_through_nobody_begins_anew() -> None:
    replaced = replace(A, workers=(Worker(0, 2),))
    decision = decide(sealed(A), ready(replaced, done=(1,), through=1, since=0))
    assert decision.proposal is not None
    assert (decision.proposal.phase, decision.proposal.outcome) == (Phase.CLOSED, "")


def test_one_that_was_stuck_and_has_worked_goes_on_when_the_others_are_through() -> None:
    away = replace(A, workers=())
    assert decide(sealed(A), ready(away, through=1, stuck=True)).proposal is None
    missed = ready(away, through=1, stuck=True, missed_round=1)
    assert decide(sealed(A), missed).proposal is None, "the others were through before they came to this world"
    back = replace(A, workers=(Worker(1, 1),))
    behind = ready(back, done=(0,), through=1, since=0)
    assert decide(sealed(A), behind).reason == "all have finished", "they have gone on meanwhile"
    since = LeaderTimers(enough_since=0.0)
    assert members(decide(sealed(A), ready(back, done=(0,), through=1, since=1), now=9.0, since=since)) == ["a"]


def test_nobody_begins_anew_while_one_that_was_stuck_may_come_back() -> None:
    begins = ready(replace(A, workers=(Worker(0, 2),)), done=(1,), through=1, since=2, stuck=True, missed_round=2)
    decision = decide(sealed(A, number=2), begins)
    assert decision == Decision("all have finished, except a worker that may come back")
    assert decide(sealed(A, number=2), replace(begins, stuck=False)).reason == "all have finished"


def test_who_came_after_the_others_had_worked_and_never_worked_with_them_begins_nothing() -> None:
    through = ready(replace(A, workers=(Worker(0, 2),)), done=(1,), through=1, since=0)
    assert decide(sealed(A, B, number=2), through, ready(B, since=2)).reason == "all have finished"
    assert members(decide(sealed(A, B, number=2), through, ready(B, since=1))) == ["b", "a"]


def test_one_that_has_left_does_not_end_the_work_of_others() -> None:
    replaced = replace(A, workers=(Worker(0, 2),))
    assert members(decide(sealed(A), ready(replaced, done=(1,)))) == ["a"]


def test_a_node_that_has_finished_with_a_failure_leaves_a_gap() -> None:
    pair = member("b", workers=2)
    recorded = replace(sealed(A, pair), finishing=True, finished=(1,))
    finished = Report(replace(pair, workers=pair.workers[:1]), NodeIntent.FINISHED, done=(0,))
    assert members(decide(recorded, ready(A), finished)) == ["a"]
    finished = Report(pair, NodeIntent.FINISHED, done=(0, 1))
    assert decide(recorded, ready(A), finished).proposal is None
    replaced = replace(pair, workers=(Worker(0, 2), pair.workers[1]))
    finished = Report(replaced, NodeIntent.FINISHED, done=(0, 1))
    assert members(decide(recorded, ready(A), finished)) == ["a"]


def test_a_node_that_comes_back_leaves_behind_those_that_are_done() -> None:
    pair = member("b", workers=2)
    decision = decide(sealed(A), ready(A), ready(pair, done=(0,)), now=9.0, since=LeaderTimers(enough_since=0.0))
    assert decision.proposal is not None
    assert decision.proposal.members[1].workers == pair.workers[1:]
    only_done = ready(replace(pair, workers=pair.workers[:1]), done=(0,))
    assert decide(sealed(A), ready(A), only_done, now=9.0, since=LeaderTimers(enough_since=0.0)).proposal is None
