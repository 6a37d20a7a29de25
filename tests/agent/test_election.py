"""Who leads, as each agent finds it by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from values import member, ready, sealed

from softrun.agent.protocol import effects as do
from softrun.agent.protocol.model import NodeIntent, Report
from softrun.agent.rendezvous.decisions import LeaderTimeouts
from softrun.agent.rendezvous.election import Election

A, B, C = (member(name) for name in "abc")
WORLD = sealed(A, B, C)
TIMEOUTS = LeaderTimeouts(last_call_s=0.3, broken_s=0.5)


def leader(*heard: Report) -> str | None:
    """As c sees it."""
    election = Election("c", 1.0, 5.0, TIMEOUTS, 0.0)
    for report in heard:
        election.leadership.hear(report)
    found = election.leader(WORLD, next((report for report in heard if report.member == C), ready(C)))
    return found.node if found is not None else None


def test_the_first_member_leads_heard_of_or_not() -> None:
    assert leader() == "a"
    assert leader(ready(A), ready(B)) == "a"


@pytest.mark.parametrize("away", [{"leaving": True}, {"yields": WORLD.version}])
def test_who_will_not_be_in_the_next_world_does_not_lead_it(away: dict[str, object]) -> None:
    """Its store would be in an agent that nobody misses."""
    assert leader(ready(A, **away)) == "b"
    assert leader(ready(A, **away), ready(B, **away)) == "c"
    assert leader(ready(A, **away), ready(B, **away), ready(C, **away)) == "a", "somebody has to"
    assert leader(Report(A, NodeIntent.FINISHED), ready(B, **away), ready(C, **away)) == "b"


def test_what_was_said_of_an_earlier_record_holds_no_more() -> None:
    assert leader(ready(A, yields=WORLD.version - 1)) == "a"


def test_that_its_workers_ask_is_told_to_nobody_by_itself() -> None:
    election, own = Election("c", 1.0, 5.0, TIMEOUTS, 0.0), ready(C)
    assert election.tell(own)
    assert election.tell(replace(own, asks=True, sequence=2)) == []
    (say,) = election.tell(replace(own, asks=True, sequence=3, never_came=1))
    assert isinstance(say, do.Say)


def test_those_who_have_withdrawn_do_not_lead() -> None:
    assert leader(Report(A, NodeIntent.AWAY), ready(replace(B, incarnation=2))) == "c"
