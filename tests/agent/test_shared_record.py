"""One engine that keeps the record with others: how it finds its job, and what it does in too small a part of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_engine import Agent, paused, said, sought, spawned
from values import following, known, member, of_job, ready, sealed

from softrun.agent.consensus.change import changed, difference
from softrun.agent.consensus.leases import DRIFT
from softrun.agent.core.stages import Stage
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.model import (
    NO_RECORD,
    Accept,
    Accepted,
    Address,
    Beat,
    Hello,
    NodeIntent,
    Phase,
    Record,
    RecordId,
    Report,
    Round,
)
from softrun.runtime.events import WorkerState

AWAY_S = 30.0
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
    assert (node, hello.known) == ("b", NO_RECORD)
    shown = of_job("b@1", sealed(member("b")), settings=agent.job)
    effects = agent.see(saw.Heard("b", Record(shown, stands=True)))
    assert agent.engine.record == shown
    assert agent.report is not None
    assert agent.report.known == shown.id
    assert [hello.known for _, hello in said(effects, Hello)] == [shown.id], "it asks to join that job, on that link"


def test_whoever_listens_at_the_first_endpoint_joins_the_job_that_goes_on_at_another() -> None:
    """Its host was replaced."""
    agent = Agent(endpoints=(ONE, TWO))
    agent.see(saw.Tick(), saw.Listening(ONE), saw.Found(TWO, "b"))
    shown = of_job("b@1", sealed(member("b")), settings=agent.job)
    agent.see(saw.Heard("b", Accept((0, "b"), difference(shown, following(shown)), shown.id)))
    assert agent.engine.record is None, "b has not answered yet, and it would be a second job"
    agent.see(saw.Heard("b", Record(shown, stands=True)))
    assert agent.engine.record == shown


def test_it_founds_the_job_when_whoever_is_at_another_endpoint_says_that_it_has_none() -> None:
    agent = Agent(endpoints=(ONE, TWO))
    agent.see(saw.Tick(), saw.Listening(ONE), saw.Found(TWO, "b"))
    agent.see(saw.Heard("b", Report(member("b"), NodeIntent.READY, known=known(2, "b@1"))))
    assert agent.engine.record is None, "it has one, and will show it"
    agent.see(saw.Heard("b", Report(member("b"), NodeIntent.READY, sequence=1)))
    assert agent.engine.record is not None
    assert [m.node for m in agent.engine.record.members] == ["a"]


def test_what_another_had_said_before_this_agent_was_away_founds_no_job() -> None:
    agent = Agent(endpoints=(ONE, TWO))
    agent.see(saw.Tick(), saw.Listening(ONE), saw.Found(TWO, "b"))
    jobless = saw.Heard("b", Report(member("b"), NodeIntent.READY, sequence=1))
    agent.now += AWAY_S
    effects = agent.see(jobless)
    assert agent.engine.record is None, "it may have founded one since"
    assert do.HangUp("b") in effects
    assert sought(effects) == [TWO], "so it looks again"
    agent.see(saw.Found(TWO, "b"), jobless)
    assert agent.engine.record is not None


def test_whom_an_agent_with_another_token_keeps_from_an_endpoint_ends_with_one_line() -> None:
    agent = Agent(endpoints=(ONE, TWO))
    agent.see(saw.Tick(), saw.Listening(ONE))
    effects = agent.see(saw.NotFound(TWO, "an agent with another token", doubtful=True))
    while (due := agent.engine.deadline()) is not None:
        agent.now = due
        again = (saw.NotFound(TWO, "an agent with another token", doubtful=True) for _ in sought(effects))
        effects = agent.see(saw.Tick(), *again)
    (end,) = (e for e in effects if isinstance(e, do.End))
    assert end.result.outcome is do.Outcome.STORE_LOST
    assert end.result.reason.startswith("an agent with another token answers at host2:29400: ")
    assert agent.now == 3.0


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


@pytest.mark.parametrize(
    ("tolerance_s", "join_timeout_s", "heard_at", "begins_at"),
    [
        (3.0, 600.0, 0.0, 30.0),
        (1.0, 20.0, 0.0, 10.0),  # later than that nobody could join it in time
        (3.0, 600.0, 20.0, 50.0),  # it may be alone to blame for having lost touch
    ],
)
def test_one_that_was_left_out_begins_anew_when_it_has_looked_for_the_members_in_vain_for_half_of_its_time(
    tolerance_s: float, join_timeout_s: float, heard_at: float, begins_at: float
) -> None:
    """It listens where the job is founded, and a member that refuses may be in a world."""
    agent = Agent(endpoints=(ONE,), tolerance_s=tolerance_s, join_timeout_s=join_timeout_s)
    shown = of_job("b@1", sealed(member("b")), settings=agent.job)
    agent.see(saw.Heard("b", Record(shown, stands=True)))
    agent.see(saw.Listening(ONE))
    if heard_at:
        agent.now = heard_at
        agent.see(saw.Heard("b", Record(shown, stands=True)))
    while agent.engine.record == shown:
        due = agent.engine.deadline()
        assert due is not None
        agent.now = due
        agent.see(saw.Tick())
        agent.see(saw.LinkDown("b", refused=True))
    assert agent.now == begins_at
    assert agent.engine.record is not None
    assert [m.node for m in agent.engine.record.members] == ["a"]


def meeting(tolerance_s: float = 3.0) -> Agent:
    """It leads a world with b and c, without a store, and has heard both."""
    agent = Agent(endpoints=(ONE,), tolerance_s=tolerance_s)
    world = sealed(*(member(node) for node in "abc"))
    agent.see(saw.Heard("b", Record(of_job("a@1", world, settings=agent.job), stands=True)))
    agent.see(saw.WorkerStoreOpened(5000))
    for node in "bc":
        agent.see(saw.Heard(node, Hello(ready(member(node), known(2, "a@1")))))
    agent.say()
    return agent


def whole(agent: Agent, asked: Accept) -> Round:
    """The record that others are asked to accept."""
    record = agent.engine.record
    assert record is not None
    after = changed(record, asked.change)
    assert after is not None
    return after


def known_by(agent: Agent) -> RecordId:
    assert agent.engine.record is not None
    return agent.engine.record.id


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
        effects += agent.see(
            saw.Heard("b", Report(member("b"), NodeIntent.READY, known=known(2, "a@1"), sequence=second))
        )
    ((_, asked),) = said(effects, Accept)
    assert [m.node for m in whole(agent, asked).members] == ["a", "b"]
    assert not agent.engine.is_cut_off
    agent.see(saw.Heard("b", Accepted(asked.ballot, asked.after)))
    assert known_by(agent) == asked.change.round.id


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
    away = Report(member("b"), NodeIntent.AWAY, known=known(2, "a@1"), sequence=1)
    ((_, asked),) = said(agent.see(saw.Heard("b", away)), Accept)
    agent.see(saw.Heard("b", Accepted(asked.ballot, asked.after)))
    agent.see(saw.LinkDown("c", refused=False))
    assert agent.engine.record == before
    assert before is not None
    assert sought(agent.go_on(0.3)) == [Address("host-c", 7000)]
    agent.see(answer)
    assert known_by(agent) == (asked.change.round.id if dead else before.id)


def test_who_is_greeted_by_one_that_knows_a_newer_record_asks_for_it() -> None:
    agent = meeting()
    record = agent.engine.record
    assert record is not None
    hello = Hello(ready(member("b"), following(record).id))
    ((to, asked),) = said(agent.see(saw.Heard("b", hello)), Hello)
    assert (to, asked.known) == ("b", record.id)
    same = Hello(ready(member("b"), record.id))
    assert not said(agent.see(saw.Heard("b", same)), Hello)


def other_job(*nodes: str, version: int = 9, **job: object) -> Record:
    """What b shows of another job, in which it has a place."""
    world = of_job("b@1", sealed(*(member(node) for node in nodes), number=7), version=version)
    return Record(replace(world, settings=meeting().job), **job)  # type: ignore[arg-type]


def test_who_is_shown_another_job_that_counts_on_it_says_in_which_it_is() -> None:
    agent = meeting()
    ((to, report),) = said(agent.see(saw.Heard("b", other_job("b", "a"))), Report)
    assert (to, report.known.lineage) == ("b", "a@1")
    assert not said(agent.see(saw.Heard("b", other_job("b"))), Report)


def test_a_member_that_is_in_another_job_is_left_behind_and_casts_no_vote() -> None:
    agent = meeting()
    ((_, asked),) = said(
        agent.see(saw.Heard("c", Report(member("c"), NodeIntent.READY, known=known(2, "c@1"), sequence=1))), Accept
    )
    assert [m.node for m in whole(agent, asked).members] == ["a", "b"]
    agent.see(saw.Heard("b", Accepted(asked.ballot, asked.after)))
    assert known_by(agent) == asked.change.round.id, "c was not waited for"


def test_of_two_jobs_the_one_that_gives_up_names_who_is_there() -> None:
    """The first member of the other one may be gone by then."""
    agent = meeting()
    shown = other_job("gone", "b", stands=True)
    ((_, asked),) = said(agent.see(saw.Heard("b", shown)), Accept)
    assert asked.change.round.heir == Address("host-b", 7000)


def test_those_that_wait_for_the_same_members_give_up_together() -> None:
    """Not one after the other, each when the one before it has."""
    agent = meeting()
    timeout_s = agent.engine._config.join_timeout_s
    agent.see(saw.Heard("b", Beat(at=1.0, echo=0.5, grant_s=1.0, leads=True)))
    agent.go_on(timeout_s - 10.0)
    assert agent.engine.stage is Stage.WAITING
    agent.go_on(timeout_s + 2.0)
    assert agent.engine.stage is Stage.LEAVING


def test_what_was_decided_elsewhere_is_shown_to_those_that_follow() -> None:
    """They were no voters, or its decider has never heard of them."""
    agent = meeting()
    assert agent.engine.record is not None
    newer = following(agent.engine.record, number=2)
    effects = agent.see(saw.Heard("b", Record(newer, stands=True)))
    assert [(to, record.round) for to, record in said(effects, Record)] == [(None, newer)]
    assert not said(agent.see(saw.Heard("c", Record(newer, stands=True))), Record), "once"


def test_one_that_has_nothing_to_propose_knows_that_it_could_not() -> None:
    """So it may join another job, and ends after a while."""
    agent = Agent(endpoints=(ONE,), tolerance_s=3.0, failure="replace")
    world = sealed(*(member(node) for node in "abc"))
    agent.see(saw.Heard("b", Record(of_job("a@1", world, settings=agent.job), stands=True)))
    agent.see(saw.WorkerStoreOpened(5000), saw.WorkerExited(0, 1, 1))
    assert agent.workers() == (), "its only one is being replaced"
    for node in "bc":
        agent.see(saw.Heard(node, Hello(ready(member(node), known(2, "a@1")))))
    agent.go_on(12.0)  # the others would lead before it
    assert agent.engine.is_cut_off
    assert agent.engine.stage is Stage.WAITING
    other = of_job("x@1", sealed(member("x")), settings=agent.job)
    agent.see(saw.Heard("x", Record(other, stands=True)))
    assert agent.engine.record == other


def test_one_that_is_cut_off_joins_no_job_that_is_cut_off_as_well() -> None:
    """It would leave its place for nothing, and that one may give up in its turn."""
    agent = meeting()
    agent.go_on(5.0)
    assert agent.engine.is_cut_off
    own, other = agent.engine.record, of_job("x@1", sealed(member("x"), member("y")), settings=agent.job)
    agent.see(saw.Heard("x", Record(other, stands=False)))
    assert agent.engine.record == own
    agent.see(saw.Heard("x", Record(other, stands=True)))
    assert agent.engine.record == other


def test_one_that_has_left_its_job_tells_those_that_still_count_on_it() -> None:
    """Else they take it for living, and wait for it, as long as they can reach it."""
    agent = meeting()
    agent.go_on(5.0)
    left, other = agent.engine.record, of_job("x@1", sealed(member("x")), settings=agent.job)
    assert left is not None
    agent.see(saw.Heard("x", Record(other, stands=True)))
    ((to, report),) = said(agent.see(saw.Heard("b", Record(left, stands=True))), Report)
    assert (to, report.known) == ("b", other.id)


def test_a_leader_that_is_cut_off_asks_whoever_it_finds() -> None:
    agent = meeting()
    assert said(agent.see(saw.Found(ONE, "x")), Record)
    agent.go_on(5.0)
    effects = agent.see(saw.Found(TWO, "y"))
    assert [to for to, _ in said(effects, Hello)] == ["y"]
    assert not said(effects, Record)


def test_a_follower_tells_its_leader_of_another_job() -> None:
    """The leaders of both look for each other where the job may be found, and a follower may be there."""
    agent = Agent(endpoints=(ONE,))
    world = sealed(*(member(node) for node in "bac"))
    agent.see(saw.Heard("b", Record(of_job("b@1", world, settings=agent.job), stands=True)))
    agent.see(saw.LinkUp("b"))
    other = of_job("x@1", sealed(member("x")), settings=agent.job)
    shown = Record(other, stands=True)
    assert said(agent.see(saw.Heard("x", shown)), Record) == [("b", shown)]
    assert not said(agent.see(saw.Heard("c", shown)), Record), "c has told its leader as well"


@pytest.mark.parametrize("later_s", [0.0, 0.1, 0.2, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("waited_s", [0.0, 5.0])
def test_one_that_is_shown_a_newer_record_proposes_nothing_from_the_older(waited_s: float, later_s: float) -> None:
    """Whatever is due in that turn: it is cut off, and the others have gone on without it."""
    agent = meeting()
    agent.go_on(waited_s)
    assert agent.engine.record is not None
    newer = following(agent.engine.record, number=2, members=(member("b"), member("c")), lost=("a",))
    agent.now += later_s
    effects = agent.see(saw.Heard("b", Record(newer, stands=True)))
    assert agent.engine.record == newer
    assert not said(effects, Accept)
    assert {record.round for _, record in said(effects, Record)} <= {newer}, "it has begun no job of its own"


def found_twice(own: str, worked_s: float) -> Agent:
    """It has led a world of job `own` for so long, with b and c."""
    agent = Agent(endpoints=(ONE,))
    world = of_job(own, sealed(*(member(node) for node in "abc")), settings=agent.job)
    agent.see(saw.Heard("b", Record(world, stands=True, worked_s=worked_s - 7.0)))
    agent.see(saw.WorkerStoreOpened(5000))
    for node in "bc":
        agent.see(saw.Heard(node, Hello(ready(member(node), known(2, own)))))
    agent.now += 7.0
    return agent


OTHERS = of_job("m@1", sealed(member("x")), settings=Agent().job)


@pytest.mark.parametrize("own", ["a@1", "z@1"])
def test_of_two_jobs_one_compares_and_says_so_to_the_other(own: str) -> None:
    """They would not see the same, since each hears of the other a little late."""
    agent = found_twice(own, 60.0)
    effects = agent.see(saw.Heard("x", Record(OTHERS, stands=True, worked_s=40.0)))
    ((_, told),) = said(effects, Record)
    assert told.worked_s == 60.0
    assert told.over == ("m@1" if own < "m@1" else "")
    assert not said(effects, Accept)


@pytest.mark.parametrize(
    ("own", "worked_s", "over", "gives_up"),
    [
        ("a@1", 80.0, "", True),
        ("z@1", 80.0, "", False),
        ("z@1", 59.0, "z@1", True),
        ("z@1", 59.0, "y@1", False),
        ("a@1", 40.0, "a@1", False),
    ],
    ids=["compares", "waits", "was told", "another was told", "knows better"],
)
def test_the_one_that_has_worked_for_a_shorter_time_gives_up(
    own: str, worked_s: float, over: str, gives_up: bool
) -> None:
    agent = found_twice(own, 60.0)
    effects = agent.see(saw.Heard("x", Record(OTHERS, stands=True, worked_s=worked_s, over=over)))
    assert [asked.change.round.phase for _, asked in said(effects, Accept)] == [Phase.GIVEN_UP] * gives_up


def test_a_record_tells_for_how_long_its_job_has_had_a_world() -> None:
    agent = found_twice("a@1", 60.0)
    away = Report(member("c"), NodeIntent.AWAY, known=known(2, "a@1"), sequence=1)
    ((_, asked),) = said(agent.see(saw.Heard("c", away)), Accept)
    assert asked.change.round.worked_s == 60.0


# --- two jobs of one name


def errors(effects: list[do.Effect]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, do.Note) and effect.error]


def alone(record: Round, node: str, **changes: object) -> Round:
    """What `node` has made of it, by a false proof that the others had ended."""
    made = following(record, number=record.number + 1, members=(member(node),), **changes)
    return replace(made, by_proof=((made.version, made.name),))


def split() -> tuple[Agent, Round, Round]:
    """It leads a world with b and c, and they have changed the record. x has made another of the one before."""
    agent = found_twice("a@1", 60.0)
    before = agent.engine.record
    assert before is not None
    away = Report(member("c"), NodeIntent.AWAY, known=before.id, sequence=1)
    ((_, asked),) = said(agent.see(saw.Heard("c", away)), Accept)
    for node in "bc":
        agent.see(saw.Heard(node, Accepted(asked.ballot, asked.after)))
    record = agent.engine.record
    assert record is not None
    assert record.id == asked.change.round.id
    return agent, record, alone(before, "x")


def test_a_leader_that_is_shown_another_record_of_its_version_says_so_once_and_takes_another_name() -> None:
    agent, own, other = split()
    effects = agent.see(saw.Heard("x", Record(other, stands=True, worked_s=80.0)))
    (line,) = errors(effects)
    assert "Here: version 3, round 2 of a, b, 60.0 s of work. There: version 3, round 2 of x, 80.0 s of work" in line
    ((to, shown),) = said(effects, Record)
    assert (to, shown.round, shown.apart_from) == ("x", own, other.name)
    ((_, asked),) = said(effects, Accept)
    assert (asked.change.round.lineage, asked.change.round.split_from, asked.after) == ("a/4", "a@1", own.id)
    assert whole(agent, asked).members == own.members
    effects = agent.see(saw.Heard("x", Record(other, stands=True, worked_s=81.0)))
    assert not errors(effects)
    assert not said(effects, Accept), "it has asked"


def test_one_that_was_told_that_they_are_apart_does_not_say_it_back() -> None:
    """Else the two would answer each other without end."""
    agent, own, other = split()
    assert not said(agent.see(saw.Heard("x", Record(other, stands=True, apart_from=own.name))), Record)


def test_what_no_record_tells_an_agent_that_remembers_more_does() -> None:
    """The other has changed so often since that its record does not know any more what was before."""
    agent, own, other = split()
    far = replace(other, version=99, name="?", past=tuple("0123456789abcdef"))
    effects = agent.see(saw.Heard("x", Record(far, stands=True, apart_from=own.name)))
    assert [asked.change.round.lineage for _, asked in said(effects, Accept)] == ["a/4"]
    assert agent.engine.record == own


def test_of_the_two_a_quorum_of_the_last_common_record_never_gives_up() -> None:
    agent, _, other = split()
    ((_, asked),) = said(agent.see(saw.Heard("x", Record(other, stands=True, worked_s=80.0))), Accept)
    agent.see(saw.Heard("b", Accepted(asked.ballot, asked.after)))
    own = agent.engine.record
    assert own is not None
    assert own.lineage == "a/4"
    renamed = replace(following(other, lineage="x/4", split_from="a@1"), by_proof=other.by_proof)
    effects = agent.see(saw.Heard("x", Record(renamed, stands=True, worked_s=80.0)))
    assert not said(effects, Accept), "though the other has worked for longer"
    assert [told.over for _, told in said(effects, Record)] == ["x/4"]


def test_one_that_a_record_counts_on_and_that_waits_for_a_place_in_another_says_so() -> None:
    """Its leader learns of it, too."""
    agent = Agent(endpoints=(ONE,), tolerance_s=3.0)
    world = of_job("b@1", sealed(member("b")), settings=agent.job)
    agent.see(saw.Heard("b", Record(world, stands=True, worked_s=60.0)), saw.LinkUp("b"))
    other = of_job("a@1", sealed(member("x"), member("a")), settings=agent.job)
    shown = Record(other, worked_s=9.0)
    effects = agent.see(saw.Heard("x", shown))
    assert agent.engine.record == world
    assert [(to, report.known) for to, report in said(effects, Report)] == [("x", world.id)]
    assert said(effects, Record) == [("b", shown)]


# --- leases


def test_the_world_that_it_has_sealed_is_a_lease_for_the_leader_and_those_that_follow_get_theirs() -> None:
    """Its workers are bounded from the first moment: its agent may be stopped right after."""
    agent = meeting()
    for node in "bc":
        agent.see(saw.Heard(node, Beat(at=7.0)))
    away = Report(member("c"), NodeIntent.AWAY, known=known(2, "a@1"), sequence=1)
    ((_, asked),) = said(agent.see(saw.Heard("c", away)), Accept)
    agent.now = 1.0
    effects = [effect for node in "bc" for effect in agent.see(saw.Heard(node, Accepted(asked.ballot, asked.after)))]
    assert known_by(agent) == asked.change.round.id
    (allowed,) = (effect for effect in effects if isinstance(effect, do.Allow))
    assert allowed.leave_at == pytest.approx(3.0 * (1 - DRIFT)), "from when it asked the others to accept"
    grants = {to: beat.grant_s for to, beat in said(effects, Beat)}
    assert grants.keys() == {"b", "c"}
    assert all(0.0 < grant_s <= allowed.leave_at - agent.now for grant_s in grants.values())


def follower() -> Agent:
    """It follows b in a world with b and c, by a lease that stands until 103."""
    agent = Agent(endpoints=(ONE,), tolerance_s=3.0)
    world = sealed(*(member(node) for node in "bac"))
    agent.now = 100.0
    agent.see(saw.Heard("b", Record(of_job("b@1", world, settings=agent.job), stands=True)))
    agent.see(saw.LinkUp("b"))
    agent.say()
    agent.see(saw.Heard("b", Beat(at=7.0, echo=100.0, grant_s=3.0, leads=True)))
    return agent


def test_who_has_accepted_to_be_left_behind_has_its_workers_stop_at_once() -> None:
    """The others may decide it at any time, and a lease that it was granted before is worth nothing then."""
    agent = follower()
    agent.now = 101.0
    record = agent.engine.record
    assert record is not None
    without = following(record, number=2, members=(member("b"), member("c")), lost=("a",))
    effects = agent.see(saw.Heard("b", Accept((0, "b"), difference(record, without), record.id)))
    assert said(effects, Accepted)
    assert [effect.leave_at for effect in effects if isinstance(effect, do.Allow)] == [101.0]
    agent.see(saw.Heard("b", Beat(at=8.0, echo=100.9, grant_s=3.0, leads=True)))
    assert not [effect for effect in agent.go_on(101.9) if isinstance(effect, do.Allow)], "nor is another"


def test_who_is_taken_in_again_gets_no_time_for_workers_in_the_old_world() -> None:
    agent = follower()
    record = agent.engine.record
    assert record is not None
    without = following(record, number=2, members=(member("b"), member("c")), lost=("a",))
    effects = agent.see(saw.Heard("b", Record(without, stands=True)))
    assert paused(effects) == [0]
    members = (member("b"), member("c"), member("a", incarnation=2))
    again = following(without, number=3, members=members, lost=())
    agent.see(saw.Heard("b", Record(again, stands=True)))
    beat = saw.Heard("b", Beat(at=9.0, echo=101.0, grant_s=3.0, leads=True))
    agent.now = 101.0
    assert not [effect for effect in agent.see(beat) if isinstance(effect, do.Allow)]
    agent.say(applied=3)  # it has obeyed, and is in the new one
    assert [effect.leave_at for effect in agent.effects if isinstance(effect, do.Allow)] == [
        pytest.approx(101.0 + 3.0 * (1 - DRIFT))
    ]


def test_a_world_of_which_its_workers_know_the_number_from_another_job_is_asked_for_anew() -> None:
    """Of two founders each has sealed its first world. A worker that was started outside of the one may not be told of
    the other: to it that would be an old one."""
    agent = Agent(endpoints=(ONE,), tolerance_s=3.0)
    others = of_job("b@1", sealed(member("b")), settings=agent.job)
    effects = agent.see(saw.Heard("b", Record(others, stands=True)))
    assert spawned(effects) == [(0, WorkerState.PAUSED)]
    agent.say()
    world = of_job("c@1", sealed(member("c"), member("a")), settings=agent.job)
    effects = agent.see(saw.Heard("c", Record(world, stands=True, worked_s=9.0)))
    assert agent.engine.record == world
    assert not [effect for effect in effects if isinstance(effect, do.Tell)]
    assert agent.report is not None
    assert agent.report.broken_round == world.number
    assert agent.report.told == world.number, "so the leader gives the next one a higher number"
    effects = agent.see(saw.Heard("c", Record(following(world, number=2), stands=True)))
    assert [effect.round for effect in effects if isinstance(effect, do.Tell)] == [2]


def test_whom_it_is_about_to_leave_behind_it_grants_no_lease() -> None:
    agent = meeting()
    effects: list[do.Effect] = []
    for second in range(1, 6):
        effects += agent.go_on(float(second))
        effects += agent.see(saw.Heard("b", Beat(at=float(second), echo=agent.now, grant_s=3.0, asks=True)))
    assert [asked.change.round.lost for _, asked in said(effects, Accept)] == [("c",)]
    c_returns = saw.Heard("c", Beat(at=3.0, echo=agent.now, grant_s=3.0, asks=True))
    assert {beat.grant_s for to, beat in said(agent.see(c_returns), Beat) if to == "c"} == {0.0}
