"""Until when the workers may work without a word of their agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
from values import JOB, following, member, of_job, sealed

from softrun.agent.consensus.leases import DRIFT
from softrun.agent.core.allowance import HOLD, NO_BOUND, PAST, Allowance
from softrun.agent.core.engine import Engine
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.effects import Allow, Say
from softrun.agent.protocol.model import Address, Beat, Hello, NodeIntent, Record, Report
from softrun.agent.rendezvous.lease_clock import LeaseClock
from softrun.policies import load_policy

NOBODY_LEASES = LeaseClock()


def an_allowance(*, shared: bool = True) -> Allowance:
    return Allowance(shared, tolerance_s=4.0)


def test_a_job_of_one_node_has_no_bound() -> None:
    assert an_allowance(shared=False).advance(5.0, NOBODY_LEASES) == []


def test_where_there_are_leases_another_node_may_get_the_place_of_the_only_one() -> None:
    allowance, lease = an_allowance(shared=False), LeaseClock()
    lease.renewed(until=120.0, lease_number=1, granted_s=20.0, now=100.0)
    assert allowance.advance(inf, lease) == [Allow(118.0, 119.5)]


def test_it_ends_when_the_leases_of_the_others_end() -> None:
    """Until then nobody has gone on without this node, and a last part is left for the step under way."""
    allowance = an_allowance()
    assert allowance.advance(14.0, NOBODY_LEASES) == [Allow(13.0, 14.0)]
    [allowed] = an_allowance().advance(9.0, NOBODY_LEASES)
    assert allowed.hold_at < allowed.leave_at <= 9.0


def test_it_is_moved_with_the_lease_and_not_more_often() -> None:
    allowance = an_allowance()
    assert allowance.advance(14.0, NOBODY_LEASES)
    assert allowance.advance(14.0, NOBODY_LEASES) == []
    assert allowance.advance(14.125, NOBODY_LEASES) == [Allow(13.125, 14.125)]


def test_without_any_lease_nobody_counts_on_this_node_and_nothing_is_changed() -> None:
    allowance = an_allowance()
    assert allowance.advance(-inf, NOBODY_LEASES) == []
    assert allowance.advance(14.0, NOBODY_LEASES)
    assert allowance.advance(-inf, NOBODY_LEASES) == []


def test_in_a_world_without_any_lease_no_step_is_completed_until_there_is_one() -> None:
    allowance = an_allowance()
    assert allowance.advance(-inf, NOBODY_LEASES, entered_at=10.0) == [Allow(PAST, 14.0)]
    assert allowance.advance(-inf, NOBODY_LEASES, entered_at=10.0) == []
    assert allowance.advance(14.0, NOBODY_LEASES, entered_at=10.0) == [Allow(13.0, 14.0)]


def test_alone_in_its_world_it_needs_nobody_until_there_are_others() -> None:
    allowance = an_allowance()
    assert allowance.advance(inf, NOBODY_LEASES) == []
    assert allowance.advance(14.0, NOBODY_LEASES) == [Allow(13.0, 14.0)]
    assert allowance.advance(inf, NOBODY_LEASES) == [NO_BOUND]
    assert allowance.advance(15.0, NOBODY_LEASES) == [Allow(14.0, 15.0)]


def test_with_a_lease_it_is_what_that_allows() -> None:
    allowance, lease = an_allowance(), LeaseClock()
    lease.renewed(until=120.0, lease_number=1, granted_s=20.0, now=100.0)
    [allowed] = allowance.advance(inf, lease)
    assert allowed == Allow(118.0, 119.5)
    assert lease.sure(allowed.hold_at - 0.001)
    assert not lease.sure(allowed.hold_at)
    lease.renewed(until=124.0, lease_number=1, granted_s=20.0, now=104.0)
    assert allowance.advance(inf, lease) == [Allow(122.0, 123.5)]


def test_of_the_lease_in_the_store_and_those_that_agents_grant_the_first_to_end_counts() -> None:
    """Another agent ends the lease in the store once the others have ended."""
    allowance, lease = an_allowance(), LeaseClock()
    lease.renewed(until=120.0, lease_number=1, granted_s=20.0, now=100.0)
    [allowed] = allowance.advance(-inf, lease)
    assert 0.0 < allowed.hold_at < 100.0, "nobody has granted it one: its workers wait for that"
    assert allowance.advance(105.0, lease) == [Allow(104.0, 105.0)]
    assert allowance.advance(119.0, lease) == [Allow(118.0, 119.0)]
    assert allowance.advance(125.0, lease) == [Allow(118.0, 119.5)]


# --- in an engine: a follows b, or leads it

TOLERANCE_S = 5.0


class Agent:
    """An engine in a world with b, which says `answer` to each of its beats, if anything."""

    def __init__(self, leader: str, max_nodes: int = 4) -> None:
        job = replace(JOB, max_nodes=max_nodes)
        endpoints = (Address("host-b", 29400),)
        config = EngineConfig(
            job, "a", "host-a", 7000, "trainer", 1, 3, endpoints=endpoints, beat_tolerance_s=TOLERANCE_S
        )
        self.now = 100.0
        self.allowed: Allow | None = None
        self.answer: Callable[[Beat], Beat | None] = lambda _: None
        self.engine = Engine(config, load_policy("soft"), self.now)
        order = (member("a"), member("b")) if leader == "a" else (member("b"), member("a"))
        self.see(saw.Heard("b", Record(of_job("b@1", sealed(*order), settings=job), stands=True)))

    def see(self, *seen: saw.Observation) -> None:
        """Take this in, and what is answered to it."""
        waiting = list(seen)
        while waiting:
            for effect in self.engine.observe(waiting.pop(0), self.now):
                if isinstance(effect, Allow):
                    self.allowed = effect
                match effect:
                    case Say("b", (Beat() as beat) | Hello(beat=Beat() as beat)):
                        answer = self.answer(beat)
                        waiting += [saw.Heard("b", answer)] if answer is not None else []

    def go_on(self, until: float, *said: saw.Observation) -> None:
        """While the engine has its way; `said` is what it hears each time."""
        while (due := self.engine.deadline()) is not None and due <= until:
            self.now = due
            self.see(saw.Tick(), *said)


def leading(beat: Beat) -> Beat:
    return Beat(beat.at, beat.at, TOLERANCE_S, leads=True)


def as_follower(beat: Beat) -> Beat:
    return Beat(beat.at, beat.at, TOLERANCE_S)


def in_touch(agent: Agent) -> float:
    """When it last was, by what it allows."""
    assert agent.allowed is not None
    assert agent.allowed.leave_at - agent.allowed.hold_at == pytest.approx((1 - HOLD) * TOLERANCE_S)
    return agent.allowed.leave_at - TOLERANCE_S * (1 - DRIFT)


def test_a_follower_counts_from_when_it_said_what_its_leader_has_answered() -> None:
    agent = Agent(leader="b")
    assert agent.allowed == Allow(PAST, 100.0 + TOLERANCE_S), "nobody counts on it yet, so no step may be completed"
    agent.answer = leading
    agent.see(saw.LinkUp("b"))
    assert in_touch(agent) == pytest.approx(100.0)
    agent.go_on(110.0)
    assert 109.0 <= in_touch(agent) <= 110.0
    touched = in_touch(agent)
    agent.answer = lambda _: None
    agent.go_on(113.0)
    assert in_touch(agent) == touched, "it goes on to beat, and hears nothing"
    agent.see(saw.Heard("b", Beat(1.0, 0.0, TOLERANCE_S, leads=True)))
    assert in_touch(agent) == touched, "nothing tells that what it says arrives"
    agent.see(saw.Heard("c", Beat(1.0, 112.0, TOLERANCE_S)))
    assert in_touch(agent) == touched, "somebody else's word says nothing of the leader"


def test_a_leader_counts_from_when_it_said_what_the_last_member_has_answered() -> None:
    agent = Agent(leader="a")
    agent.answer = as_follower
    agent.see(saw.Heard("b", Hello(Report(member("b"), NodeIntent.READY))))
    assert agent.allowed == Allow(PAST, 100.0 + TOLERANCE_S), "a follower beats first"
    beats = saw.Heard("b", Beat(1.0, 0.0, TOLERANCE_S, asks=True))
    agent.go_on(110.0, beats)
    assert in_touch(agent) >= 110.0 - TOLERANCE_S / 2 - 1, "it is renewed when half of it is over"
    agent.answer = lambda _: None
    agent.go_on(120.0, beats)
    assert in_touch(agent) <= 110.0, "what it says may be lost"


def test_nobody_gets_time_in_a_world_that_the_others_have_left() -> None:
    """Their leader grants this node a lease all the same: it is a newcomer to them."""
    agent = Agent(leader="b")
    agent.answer = leading
    agent.see(saw.LinkUp("b"))
    agent.go_on(103.0)
    touched = in_touch(agent)
    before = agent.engine.record
    assert before is not None
    alone = following(before, number=before.number + 1, members=(member("b"),), lost=("a",))
    agent.see(saw.Heard("b", Record(alone, stands=True)))
    agent.go_on(110.0)
    assert in_touch(agent) == touched, "its workers have not said that they have left"


def test_the_only_node_of_a_job_has_no_bound() -> None:
    agent = Agent(leader="b", max_nodes=1)
    agent.answer = leading
    agent.see(saw.LinkUp("b"))
    agent.go_on(110.0)
    assert agent.allowed is None
