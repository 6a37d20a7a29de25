"""Until when the workers may work without a word of their agent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from values import JOB, member, sealed

from softrun.agent.core.allowance import HOLD, Allowance
from softrun.agent.core.engine import Engine
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.core.lease_clock import LeaseClock
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.effects import Allow, Effect
from softrun.agent.protocol.model import Beat, Hello, NodeIntent, Report
from softrun.policies import load_policy

NOBODY_LEASES = LeaseClock()


def an_allowance(*, shared: bool = True) -> Allowance:
    return Allowance(shared, interval_s=1.0, tolerance_s=4.0)


def allows(allowance: Allowance, *, alone: bool = False) -> list[Allow]:
    return allowance.advance(alone=alone, lease=NOBODY_LEASES)


def test_a_job_of_one_node_has_no_bound() -> None:
    allowance = an_allowance(shared=False)
    allowance.said(1.0)
    allowance.heard(1.0)
    assert allows(allowance, alone=True) == []


def test_it_counts_from_when_it_was_last_in_touch_both_ways() -> None:
    allowance = an_allowance()
    allowance.said(10.0)
    assert allows(allowance) == [], "it was never heard: nobody counts on it"
    allowance.heard(10.1)
    assert allows(allowance) == [Allow(13.0, 14.0)]
    allowance.heard(11.5)
    assert allows(allowance) == [], "what it says may be lost"
    allowance.said(11.0)
    assert allows(allowance) == [Allow(14.0, 15.0)]
    allowance.said(13.0)
    assert allows(allowance) == [Allow(14.5, 15.5)], "and then it hears nothing"
    allowance.said(14.0)
    assert allows(allowance) == []


def test_the_others_cannot_have_gone_on_before() -> None:
    """They take it for dead when they have not heard it for the tolerance, which began when it said something."""
    allowance = an_allowance()
    allowance.said(5.0)
    allowance.heard(5.0)
    [allowed] = allows(allowance)
    assert allowed.hold_at < allowed.leave_at <= 5.0 + 4.0


def test_alone_in_its_world_it_need_hear_nobody() -> None:
    allowance = an_allowance()
    allowance.said(2.0)
    assert allows(allowance, alone=True) == [Allow(5.0, 6.0)]
    allowance.said(2.2)
    assert allows(allowance, alone=True) == [], "the next beat is soon enough"
    allowance.said(3.0)
    assert allows(allowance, alone=True) == [Allow(6.0, 7.0)]


def test_with_a_lease_it_is_what_that_allows() -> None:
    allowance, lease = an_allowance(), LeaseClock()
    lease.renewed(until=120.0, lease_number=1, granted_s=20.0, now=100.0)
    allowance.said(100.0)
    [allowed] = allowance.advance(alone=False, lease=lease)
    assert allowed == Allow(118.0, 119.5)
    assert lease.sure(allowed.hold_at - 0.001)
    assert not lease.sure(allowed.hold_at)
    lease.renewed(until=124.0, lease_number=1, granted_s=20.0, now=104.0)
    assert allowance.advance(alone=False, lease=lease) == [Allow(122.0, 123.5)]


# --- in an engine: a follows b, or leads it

TOLERANCE_S = 5.0


class Agent:
    def __init__(self, leader: str, max_nodes: int = 4) -> None:
        job = replace(JOB, max_nodes=max_nodes)
        config = EngineConfig(job, "a", "host-a", 7000, "trainer", 1, 3, beat_tolerance_s=TOLERANCE_S)
        self.now = 0.0
        self.allowed: Allow | None = None
        self.engine = Engine(config, load_policy("soft"), 0.0)
        self.see(saw.StoreReady(hosted=False))
        order = (member("a"), member("b")) if leader == "a" else (member("b"), member("a"))
        self.see(saw.RecordSeen(replace(sealed(*order), settings=job)))

    def see(self, seen: saw.Observation) -> list[Effect]:
        effects = self.engine.observe(seen, self.now)
        self.allowed = next((effect for effect in effects if isinstance(effect, Allow)), self.allowed)
        return effects

    def beat_until(self, until: float, *answers: saw.Observation) -> None:
        """Whatever it says is answered so, while the engine has its way."""
        while (due := self.engine.deadline()) is not None and due <= until:
            self.now = due
            self.see(saw.Tick())
            for answer in answers:
                self.see(answer)


def in_touch(agent: Agent) -> float:
    """When it last was, by what it allows."""
    assert agent.allowed is not None
    assert agent.allowed.leave_at - agent.allowed.hold_at == pytest.approx((1 - HOLD) * TOLERANCE_S)
    return agent.allowed.leave_at - TOLERANCE_S


def test_a_follower_counts_from_when_it_was_in_touch_with_its_leader() -> None:
    agent = Agent(leader="b")
    agent.see(saw.LinkUp("b"))
    agent.beat_until(10.0, saw.Heard("b", Beat()))
    assert in_touch(agent) >= 9.0
    touched = in_touch(agent)
    agent.beat_until(13.0)
    assert in_touch(agent) <= touched + 1.0, "it goes on to beat, and hears nothing"
    agent.see(saw.Heard("c", Beat()))
    assert in_touch(agent) <= touched + 1.0, "somebody else's word says nothing of the leader"


def test_a_leader_counts_from_when_it_was_in_touch_with_a_member_or_with_the_store() -> None:
    hello = Hello(Report(member("b"), NodeIntent.READY))
    for answer in (saw.Heard("b", hello), saw.LeaderBeatSeen(1)):
        agent = Agent(leader="a")
        agent.beat_until(3.0, answer)
        assert in_touch(agent) >= 2.0
        touched = in_touch(agent)
        agent.beat_until(4.5)
        assert in_touch(agent) <= touched + 1.0


def test_the_only_node_of_a_job_has_no_bound() -> None:
    agent = Agent(leader="b", max_nodes=1)
    agent.beat_until(10.0, saw.Heard("b", Beat()))
    assert agent.allowed is None
