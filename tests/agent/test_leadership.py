"""What a leader takes for granted when it begins to lead."""

from __future__ import annotations

from values import STORE, member, ready, sealed

from softrun.agent import effects as do
from softrun.agent.leadership import Leadership
from softrun.agent.liveness import Liveness
from softrun.agent.rendezvous import Waits

TOLERANCE_S = 5.0
A, B, C = (member(name) for name in "abc")


def test_who_leads_again_waits_to_hear_of_those_who_spoke_to_it_long_ago() -> None:
    liveness = Liveness(1.0, TOLERANCE_S, 0.0)
    leadership = Leadership("a", liveness, Waits(last_call_s=0.3, broken_s=0.5), retry_s=1.0)
    leadership.lend(STORE)

    def hear(node: str, now: float) -> None:
        liveness.heard(node, now)
        leadership.hear(ready(member(node)))

    hear("a", 0.0)
    hear("b", 0.0)
    leadership.lead(sealed(A, B), 0.0)
    leadership.stand_down()  # c is placed first in the next world, leads it, and dies
    liveness.vouch()
    later = 2 * TOLERANCE_S
    for beat in range(int(later)):
        liveness.look(float(beat + 1))
    liveness.bury("c")
    assert not _proposals(leadership.lead(sealed(C, A, B), later)), "b may have died meanwhile"
    hear("b", later)
    (proposal,) = _proposals(leadership.lead(sealed(C, A, B), later))
    assert [m.node for m in proposal.round.members] == ["a", "b"]


def _proposals(effects: list[do.Effect]) -> list[do.Propose]:
    return [effect for effect in effects if isinstance(effect, do.Propose)]
