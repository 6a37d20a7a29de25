"""What a leader takes for granted when it begins to lead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from values import STORE, member, ready, sealed

from softrun.agent.protocol import effects as do
from softrun.agent.protocol.live import Verdict
from softrun.agent.protocol.model import NO_REQUEST, Address, BarrierAnswer, NodeIntent, Phase, Report
from softrun.agent.rendezvous import transitions
from softrun.agent.rendezvous.decisions import LeaderTimeouts
from softrun.agent.rendezvous.leader import Leader
from softrun.agent.rendezvous.liveness import Liveness
from softrun.runtime.calls import Way

TOLERANCE_S = 5.0
A, B, C = (member(name) for name in "abc")


def test_who_leads_again_waits_to_hear_of_those_who_have_followed_another() -> None:
    liveness = Liveness(1.0, TOLERANCE_S, 0.0)
    leadership = Leader("a", liveness, LeaderTimeouts(last_call_s=0.3, broken_s=0.5), retry_s=1.0)
    leadership.lend(STORE)

    def hear(node: str) -> None:
        liveness.heard(node, 0.0)
        leadership.hear(ready(member(node)))

    hear("a")
    hear("b")
    leadership.lead(sealed(A, B), 0.0)
    leadership.stand_down()  # c is placed first in the next world, leads it, and dies
    leadership.lose_touch("b")
    liveness.mark_gone("c")
    assert not _proposals(leadership.lead(sealed(C, A, B), 1.0)), "b may have finished meanwhile, and told c"
    hear("b")
    (proposal,) = _proposals(leadership.lead(sealed(C, A, B), 1.0))
    assert [m.node for m in proposal.round.members] == ["a", "b"]


def test_who_begins_to_lead_frees_nobody_before_all_were_heard() -> None:
    """The leader before may have agreed with them on a step, and have proposed the world that follows it."""
    world = sealed(A, B, C)
    leadership = Leader("b", Liveness(1.0, TOLERANCE_S, 0.0), LeaderTimeouts(0.3, 0.5, barrier_s=5.0), retry_s=1.0)
    leadership.lend(STORE)
    for heard in (ready(A, barrier_answer=BarrierAnswer((world.version, 0), 5, 5, all=True)), ready(B)):
        leadership.hear(heard)
    leadership.lead(world, 0.0)
    assert leadership.release_edition == 0
    leadership.hear(ready(C))
    leadership.lead(world, 0.1)
    assert leadership.release_edition == world.version


def test_answers_to_calls_keep_no_newcomer_waiting() -> None:
    """Under `--commit durable` the record changes in each step."""
    world = sealed(A)
    liveness = Liveness(1.0, TOLERANCE_S, 0.0)
    leadership = Leader("a", liveness, LeaderTimeouts(0.3, 0.5, barrier_s=5.0), retry_s=1.0)
    leadership.adopt(world, 0.0)
    leadership.lend(Address("host", 2))
    leadership.hear(ready(A))
    leadership.hear(ready(B))
    liveness.heard("b", 0.0)
    assert not _proposals(leadership.lead(world, 0.0))
    for turn in range(1, 6):
        leadership.owe((Verdict(world.number, (), turn, Way.EXIT, ok=True),))
        (proposal,) = _proposals(leadership.lead(world, 0.05 * turn))
        proposed = proposal.round
        assert proposed.verdicts[0].turn == turn
        assert (proposed.version, proposed.edition) == (world.version + 1, world.edition)
        assert not proposed.says_more_than(world)
        world = proposed
        leadership.adopt(world, 0.05 * turn)
        leadership.owe(())
    assert leadership.barrier_request == NO_REQUEST
    leadership.lead(world, 0.3)
    assert leadership.barrier_request == (world.edition, 0)
    leadership.hear(ready(A, barrier_answer=BarrierAnswer((world.edition, 0), 5, 5, all=True)))
    (proposal,) = _proposals(leadership.lead(world, 0.31))
    assert [m.node for m in proposal.round.members] == ["a", "b"]
    assert proposal.round.says_more_than(world)


def test_nor_if_it_proposes_another_world_itself() -> None:
    """What the leader before has proposed may be what is decided: then nobody may have passed the agreed step."""
    world = sealed(A, B, C)
    liveness = Liveness(1.0, TOLERANCE_S, 0.0)
    leadership = Leader("b", liveness, LeaderTimeouts(0.3, 0.5, barrier_s=5.0), retry_s=1.0)
    leadership.lend(STORE)
    for heard in (ready(B), ready(C, barrier_answer=BarrierAnswer((world.version, 0), 5, 5, all=True))):
        leadership.hear(heard)
        liveness.heard(heard.member.node, 0.0)
    liveness.mark_gone("a")
    assert _proposals(leadership.lead(world, 0.0))
    assert leadership.release_edition == 0


@pytest.mark.parametrize(("agrees", "withdrawn"), [(True, False), (True, True), (False, False)])
def test_a_proposal_that_some_may_have_accepted_is_made_again_though_there_is_no_need_of_it(
    agrees: bool, withdrawn: bool
) -> None:
    """A store would have said what has become of it."""
    liveness = Liveness(1.0, TOLERANCE_S, 0.0)
    leadership = Leader("a", liveness, LeaderTimeouts(0.3, 0.5), retry_s=1.0, agrees=agrees)
    leadership.lend(STORE)
    for report in (ready(A), Report(B, NodeIntent.AWAY)):
        leadership.hear(report)
    (first,) = _proposals(leadership.lead(sealed(A, B), 0.0))
    leadership.hear(ready(B, sequence=1))
    if withdrawn:
        leadership.withdraw()
    assert not _proposals(leadership.lead(sealed(A, B), 0.5))
    assert _proposals(leadership.lead(sealed(A, B), 1.0)) == ([first] if agrees and not withdrawn else [])


def test_what_is_decided_is_its_own_record_though_it_has_proposed_another_since() -> None:
    """Else it would take the silent for living, and put them into the next world once more."""
    liveness = Liveness(1.0, TOLERANCE_S, 0.0)
    leadership = Leader("a", liveness, LeaderTimeouts(0.3, 0.5), retry_s=1.0, agrees=True)
    leadership.lend(STORE)
    for placed in (A, B, C):
        leadership.hear(ready(placed))
        liveness.heard(placed.node, 0.0)
    liveness.mark_gone("c")
    (first,) = _proposals(leadership.lead(sealed(A, B, C), 0.0))
    liveness.mark_gone("b")
    leadership.mark_gone("b")
    (second,) = _proposals(leadership.lead(sealed(A, B, C), 1.0))
    assert first != second
    assert leadership.proposed(first.round)
    assert leadership.proposed(second.round)
    leadership.adopt(first.round, 0.0)
    assert not leadership.proposed(second.round), "it was a proposal for that record"


def test_those_who_go_on_without_the_leader_seal_their_world_themselves() -> None:
    """Else it would host the store of a world that it is not in, and nobody would miss it."""
    liveness = Liveness(1.0, TOLERANCE_S, 0.0)
    leadership = Leader("a", liveness, LeaderTimeouts(last_call_s=0.3, broken_s=0.5), retry_s=1.0)
    leadership.lend(STORE)
    liveness.heard("b", 0.0)
    leadership.hear(ready(replace(A, workers=())))
    leadership.hear(ready(B))
    (proposal,) = _proposals(leadership.lead(sealed(A), 0.0))
    assert (proposal.round.phase, [m.node for m in proposal.round.members]) == (Phase.OPEN, ["b"])
    after = replace(transitions.seal(sealed(A), [B], STORE, ()), stepless=3)
    assert leadership._by_a_member(sealed(A), after).stepless == 3


def test_one_that_only_refuses_may_deliver_a_verdict_until_it_is_missed_as_well() -> None:
    """A firewall may refuse for the coordinator of calls, whose lease still stands."""
    world, liveness = sealed(A, B, C), Liveness(1.0, TOLERANCE_S, 0.0)
    leadership = Leader("b", liveness, LeaderTimeouts(0.3, 0.5), retry_s=1.0)
    leadership.lend(STORE)
    for own in (B, C):
        leadership.hear(ready(own, calls=1, promised=world.edition))
    liveness.mark_refused("a", 0.0)
    now, proposals = 0.0, _proposals(leadership.lead(world, 0.0))
    assert leadership.asks_promise == world.edition, "the world is to end"
    while not proposals and now < 2 * TOLERANCE_S:
        now += 0.5
        liveness.look(now)
        liveness.heard("c", now)
        proposals = _proposals(leadership.lead(world, now))
    (proposal,) = proposals
    assert [m.node for m in proposal.round.members] == ["b", "c"]
    assert now == TOLERANCE_S


def test_absent_are_members_that_are_not_heard_and_may_live() -> None:
    liveness = Liveness(1.0, TOLERANCE_S, 0.0)
    leadership = Leader("a", liveness, LeaderTimeouts(last_call_s=0.3, broken_s=0.5), retry_s=1.0)
    leadership.lend(STORE)
    leadership.hear(ready(A))
    leadership.lead(sealed(A, B, C), 0.0)
    assert [m.node for m in leadership.absent] == ["b", "c"]
    liveness.heard("b", 0.1)
    leadership.hear(ready(B))
    liveness.mark_gone("c")
    leadership.mark_gone("c")
    leadership.lead(sealed(A, B, C), 0.2)
    assert leadership.absent == [], "c is known to be dead"
    for second in range(1, 7):
        liveness.look(second)
    leadership.lead(sealed(A, B), 6.0)
    assert [m.node for m in leadership.absent] == ["b"], "it has reported, and is silent now"
    leadership.stand_down()
    assert leadership.absent == [], "others look for them"


def test_in_touch_are_those_that_report_here() -> None:
    leadership = Leader("a", Liveness(1.0, TOLERANCE_S, 0.0), LeaderTimeouts(0.3, 0.5), retry_s=1.0)
    assert not leadership.in_touch("b")
    leadership.hear(ready(B))
    assert leadership.in_touch("b")
    leadership.lose_touch("b")
    assert not leadership.in_touch("b")
    leadership.hear(ready(B))
    assert leadership.in_touch("b")


def test_a_proposal_that_cannot_be_decided_is_made_anew_with_the_next_news_or_after_a_while() -> None:
    liveness = Liveness(1.0, TOLERANCE_S, 0.0)
    leadership = Leader("a", liveness, LeaderTimeouts(last_call_s=0.3, broken_s=0.5), retry_s=1.0)
    leadership.lend(STORE)
    leadership.hear(ready(A))
    leadership.hear(ready(B))
    liveness.mark_gone("c")
    world = sealed(A, B, C)
    assert _proposals(leadership.lead(world, 0.0))
    leadership.put_off(0.0)
    liveness.deadline()
    assert leadership.again_at == 1.0
    assert not _proposals(leadership.lead(world, 0.5))
    leadership.hear(ready(B, sequence=1))
    assert not _proposals(leadership.lead(world, 0.6)), "that is no news"
    assert _proposals(leadership.lead(world, 1.0))
    leadership.put_off(1.0)
    liveness.mark_gone("b")
    leadership.mark_gone("b")
    (proposal,) = _proposals(leadership.lead(world, 1.1))
    assert [m.node for m in proposal.round.members] == ["a"]


def _proposals(effects: list[do.Effect]) -> list[do.Propose]:
    return [effect for effect in effects if isinstance(effect, do.Propose)]


def test_what_a_node_said_in_a_life_that_is_over_for_the_others_is_old_news() -> None:
    """The network has held it back. Its sender learns that they went on without it, and comes in another life."""
    leadership = Leader("a", Liveness(1.0, TOLERANCE_S, 0.0), LeaderTimeouts(0.3, 0.5), retry_s=1.0)
    first = sealed(A, B, C)
    second = replace(first, version=first.version + 1, number=first.number + 1, members=(A, C), lost=("b",))
    third = replace(second, version=second.version + 1, number=second.number + 1, lost=())
    for round_ in (first, second, third):
        leadership.adopt(round_, 0.0)
    held_back = ready(B)
    leadership.hear(held_back, behind=True)
    assert "b" not in leadership.reports
    leadership.hear(ready(replace(B, incarnation=B.incarnation + 1)))
    assert "b" in leadership.reports


def test_a_life_that_others_have_taken_in_again_goes_on() -> None:
    leadership = Leader("a", Liveness(1.0, TOLERANCE_S, 0.0), LeaderTimeouts(0.3, 0.5), retry_s=1.0)
    first = sealed(A, B, C)
    second = replace(first, version=first.version + 1, number=first.number + 1, members=(A, C), lost=("b",))
    third = replace(first, version=second.version + 1, number=second.number + 1)
    for round_ in (first, second, third):
        leadership.adopt(round_, 0.0)
    leadership.hear(ready(B), behind=True)
    assert "b" in leadership.reports
