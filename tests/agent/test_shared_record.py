"""One engine that keeps the record with others: how it finds its job, and what it does in too small a part of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_engine import Agent, paused, said, sought
from values import member, sealed

from softrun.agent.core.stages import Stage
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.model import (
    Accept,
    Accepted,
    Address,
    Hello,
    NodeIntent,
    Record,
    Report,
)

ONE, TWO = Address("host1", 29400), Address("host2", 29400)


def test_it_looks_at_every_endpoint_and_founds_the_job_where_it_may() -> None:
    agent = Agent(endpoints=(ONE, TWO))
    effects = agent.see(saw.Tick())
    assert sought(effects) == [ONE, TWO]
    agent.see(saw.Listening(TWO))
    assert agent.engine.record is None
    agent.see(saw.NotFound(ONE))
    assert agent.engine.record is not None
    assert [m.node for m in agent.engine.record.members] == ["a"]


def test_it_asks_whoever_it_finds_and_takes_the_record_that_is_shown() -> None:
    agent = Agent(endpoints=(ONE,))
    agent.see(saw.Tick())
    ((node, hello),) = said(agent.see(saw.Found(ONE, "b")), Hello)
    assert (node, hello.version, hello.lineage) == ("b", 0, "")
    shown = replace(sealed(member("b")), settings=agent.job, lineage="b@1")
    effects = agent.see(saw.Heard("b", Record(shown, stands=True)))
    assert agent.engine.record == shown
    assert agent.report is not None
    assert agent.report.lineage == "b@1"
    assert [hello.lineage for _, hello in said(effects, Hello)] == ["b@1"], "it asks to join that job, on that link"


def test_one_that_finds_no_job_says_where_it_has_looked() -> None:
    agent = Agent(endpoints=(ONE,))
    effects = agent.see(saw.Tick())
    while (due := agent.engine.deadline()) is not None:
        agent.now = due
        effects = agent.see(saw.Tick(), *(saw.NotFound(endpoint) for endpoint in sought(effects)))
    (end,) = (e for e in effects if isinstance(e, do.End))
    assert end.result.outcome is do.Outcome.STORE_LOST
    assert end.result.reason.startswith("no agent of this job answers at host1:29400 after 60 s")
    assert agent.now == 60.0


def meeting(tolerance_s: float = 3.0) -> Agent:
    """It leads a world with b and c, without a store, and has heard both."""
    agent = Agent(endpoints=(ONE,), tolerance_s=tolerance_s)
    world = sealed(*(member(node) for node in "abc"))
    agent.see(saw.Heard("b", Record(replace(world, settings=agent.job, lineage="a@1"), stands=True)))
    agent.see(saw.WorkerStoreOpened(5000))
    for node in "bc":
        agent.see(saw.Heard(node, Hello(Report(member(node), NodeIntent.READY, lineage="a@1"), 2, "a@1")))
    agent.say()
    return agent


def test_in_too_small_a_part_of_its_world_it_waits_with_its_workers_paused() -> None:
    agent = meeting()
    assert agent.engine.stage is Stage.WORKING
    effects = agent.go_on(5.0)
    assert paused(effects) == [0]
    assert agent.engine.is_cut_off
    assert any("2 of 3 nodes cannot be reached" in e.text for e in effects if isinstance(e, do.Note))
    assert not said(effects, Accept)
    assert {e.host for e in sought(effects)} >= {"host-b", "host-c"}, "it looks for them"


def test_with_the_greater_part_it_goes_on() -> None:
    agent = meeting()
    effects: list[do.Effect] = []
    for second in range(1, 6):
        effects += agent.go_on(float(second))
        effects += agent.see(saw.Heard("b", Report(member("b"), NodeIntent.READY, lineage="a@1", sequence=second)))
    ((_, asked),) = said(effects, Accept)
    assert [m.node for m in asked.round.members] == ["a", "b"]
    assert not agent.engine.is_cut_off
    agent.see(saw.Heard("b", Accepted(asked.round.version, asked.ballot)))
    assert agent.engine.record == asked.round


@pytest.mark.parametrize(
    ("answer", "dead"),
    [
        (saw.NotFound(Address("host-c", 7000), refused=True), True),
        (saw.Found(Address("host-c", 7000), "x"), True),
        (saw.NotFound(Address("host-c", 7000)), False),
        (saw.Found(Address("host-c", 7000), "c"), False),
    ],
    ids=["refused", "another", "no answer", "itself"],
)
def test_a_member_whose_port_is_refused_or_has_been_given_to_another_is_dead(
    answer: saw.Observation, dead: bool
) -> None:
    """It does not answer, and the others need not wait until it has been silent for long."""
    agent = meeting()
    before = agent.engine.record
    away = Report(member("b"), NodeIntent.AWAY, lineage="a@1", sequence=1)
    ((_, asked),) = said(agent.see(saw.Heard("b", away)), Accept)
    agent.see(saw.Heard("b", Accepted(asked.round.version, asked.ballot)))
    agent.see(saw.LinkDown("c", gone=False))
    assert agent.engine.record == before
    assert sought(agent.go_on(0.3)) == [Address("host-c", 7000)]
    agent.see(answer)
    assert agent.engine.record == (asked.round if dead else before)


def test_who_is_greeted_by_one_that_knows_a_newer_record_asks_for_it() -> None:
    agent = meeting()
    known = agent.engine.record
    assert known is not None
    hello = Hello(Report(member("b"), NodeIntent.READY, lineage="a@1"), known.version + 1, "a@1")
    ((to, asked),) = said(agent.see(saw.Heard("b", hello)), Hello)
    assert (to, asked.version) == ("b", known.version)
    same = Hello(hello.report, known.version, "a@1")
    assert not said(agent.see(saw.Heard("b", same)), Hello)
