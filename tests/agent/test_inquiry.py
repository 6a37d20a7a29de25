"""Whoever is about to found a job asks the witness first, and waits for it for no longer than it must."""

from __future__ import annotations

from one_engine import Agent, said, sought
from values import member, of_job, sealed

from softrun.agent.consensus.inquiry import ANSWER_S, LASTS_S, Inquiry
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.effects import HangUp
from softrun.agent.protocol.model import NO_RECORD, Address, Hello, Record, Witnessed

ONE, PLACE = Address("host1", 29400), Address("host-w", 29400)


def asking() -> Agent:
    """It listens at the only endpoint, and looks for the witness."""
    agent = Agent(endpoints=(ONE,), witness=PLACE, tolerance_s=3.0)
    agent.see(saw.Tick())
    assert PLACE not in sought(agent.effects), "it cannot found the job yet"
    agent.see(saw.Listening(ONE))
    assert sought(agent.effects) == [PLACE]
    assert agent.engine.record is None
    return agent


def hung_up(effects: list[do.Effect]) -> list[str]:
    return [effect.node for effect in effects if isinstance(effect, HangUp)]


def test_a_founder_asks_it_first_and_founds_the_job_if_it_knows_of_none() -> None:
    agent = asking()
    ((node, hello),) = said(agent.see(saw.Found(PLACE, "w")), Hello)
    assert (node, hello.known) == ("w", NO_RECORD)
    assert agent.engine.record is None
    effects = agent.see(saw.Heard("w", Witnessed()))
    assert agent.engine.record is not None
    assert [m.node for m in agent.engine.record.members] == ["a"]
    assert hung_up(effects) == ["w"]


def test_what_it_had_said_before_the_founder_was_away_founds_no_job() -> None:
    agent = asking()
    agent.see(saw.Found(PLACE, "w"))
    agent.now += 30.0
    effects = agent.see(saw.Heard("w", Witnessed()))
    assert agent.engine.record is None, "it may know of a job by now"
    assert hung_up(effects) == ["w"]
    agent.see(*(saw.NotFound(place) for place in sought(effects) if place != PLACE))
    agent.see(saw.Found(PLACE, "w"), saw.Heard("w", Witnessed()))
    assert agent.engine.record is not None


def test_the_job_that_it_knows_of_is_joined() -> None:
    """Nobody of it may be left at an endpoint."""
    agent = asking()
    agent.see(saw.Found(PLACE, "w"))
    shown = of_job("b@1", sealed(member("b")), settings=agent.job)
    effects = agent.see(saw.Heard("w", Record(shown)))
    assert agent.engine.record == shown
    assert [effect.member.node for effect in effects if isinstance(effect, do.Dial)] == ["b"]
    assert hung_up(agent.see(saw.Heard("w", Witnessed(shown.id)))) == ["w"]
    agent.go_on(20.0)
    assert agent.engine.record == shown


def test_the_job_that_it_knows_of_begins_anew_if_none_of_its_agents_is_found_for_long() -> None:
    """All may have been killed at once, with what would tell of it."""
    agent = asking()
    agent.see(saw.Found(PLACE, "w"))
    shown = of_job("b@1", sealed(member("b")), settings=agent.job)
    known = saw.Heard("w", Witnessed(shown.id))
    agent.see(saw.Heard("w", Record(shown)), known)
    while agent.engine.record == shown:
        due = agent.engine.deadline()
        assert due is not None
        agent.now = due
        if PLACE in sought(agent.see(saw.Tick())):
            agent.see(saw.Found(PLACE, "w"), known)
        agent.see(saw.LinkDown("b", refused=True))
    assert agent.now == 30.0
    assert agent.engine.record is not None
    assert [m.node for m in agent.engine.record.members] == ["a"]


def test_if_it_cannot_be_had_the_job_is_founded_without_it() -> None:
    agent = asking()
    agent.see(saw.NotFound(PLACE))
    assert agent.engine.record is not None


def test_if_it_does_not_answer_the_job_is_founded_without_it_soon() -> None:
    agent = asking()
    agent.see(saw.Found(PLACE, "w"))
    effects = agent.go_on(ANSWER_S - 0.01)
    assert agent.engine.record is None
    effects = agent.go_on(ANSWER_S)
    assert agent.engine.record is not None
    assert hung_up(effects) == ["w"]


def test_whoever_has_found_the_job_meanwhile_has_nothing_to_ask() -> None:
    agent = asking()
    agent.see(saw.Found(PLACE, "w"))
    shown = of_job("b@1", sealed(member("b"), member("a")), settings=agent.job)
    assert hung_up(agent.see(saw.Heard("b", Record(shown, stands=True)))) == ["w"]


def test_an_answer_lasts_for_a_while() -> None:
    inquiry = Inquiry(PLACE)
    assert not inquiry.is_settled(1.0)
    assert inquiry.advance(False, 1.0) == [], "it would not found a job now"
    assert sought(inquiry.advance(True, 1.0)) == [PLACE]
    assert inquiry.advance(True, 2.0) == [], "a look is under way"
    inquiry.not_found(2.0)
    assert inquiry.is_settled(2.0 + LASTS_S - 0.1)
    assert inquiry.advance(True, 2.0 + LASTS_S - 0.1) == []
    assert sought(inquiry.advance(True, 2.0 + LASTS_S)) == [PLACE]


def test_without_a_witness_there_is_nobody_to_ask() -> None:
    inquiry = Inquiry(None)
    assert inquiry.is_settled(1.0)
    assert inquiry.advance(True, 1.0) == []
    assert inquiry.deadline is None
