"""What a leader takes for granted when it begins to lead."""

from __future__ import annotations

from dataclasses import replace

from values import STORE, member, ready, sealed

from softrun.agent.protocol import effects as do
from softrun.agent.protocol.model import BarrierAnswer, Phase
from softrun.agent.rendezvous import transitions
from softrun.agent.rendezvous.decisions import LeaderTimeouts
from softrun.agent.rendezvous.leader import Leader
from softrun.agent.rendezvous.liveness import Liveness

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
    assert leadership.release_version == 0
    leadership.hear(ready(C))
    leadership.lead(world, 0.1)
    assert leadership.release_version == world.version


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


def _proposals(effects: list[do.Effect]) -> list[do.Propose]:
    return [effect for effect in effects if isinstance(effect, do.Propose)]
