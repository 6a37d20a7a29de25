"""Who leads, as each agent finds it by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from values import member, ready, sealed

from softrun.agent.consensus.change import difference
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.model import (
    Address,
    Beat,
    Hello,
    LastWords,
    Member,
    Message,
    NodeIntent,
    Phase,
    Record,
    Report,
    Round,
)
from softrun.agent.rendezvous import transitions
from softrun.agent.rendezvous.decisions import LeaderTimeouts
from softrun.agent.rendezvous.election import Election

A, B, C = (member(name) for name in "abc")
WORLD = sealed(A, B, C)
TIMEOUTS = LeaderTimeouts(last_call_s=0.3, broken_s=0.5)


def leader(*heard: Report, agrees: bool = False, record: Round = WORLD) -> str | None:
    """As c sees it. `agrees`: the agents keep the record."""
    election = Election("c", 1.0, 5.0, TIMEOUTS, 0.0, agrees)
    for report in heard:
        election.leadership.hear(report)
    election.adopt(record)
    found = election.leader(record, next((report for report in heard if report.member == C), ready(C)))
    return found.node if found is not None else None


def test_the_first_member_leads_heard_of_or_not() -> None:
    assert leader() == "a"
    assert leader(ready(A), ready(B)) == "a"


@pytest.mark.parametrize("away", [{"hands_over": WORLD.version}, {"yields": WORLD.version}])
def test_who_will_not_be_in_the_next_world_does_not_lead_it(away: dict[str, object]) -> None:
    """Its store would be in an agent that nobody misses."""
    assert leader(ready(A, **away)) == "b"
    assert leader(ready(A, **away), ready(B, **away)) == "c"
    assert leader(ready(A, **away), ready(B, **away), ready(C, **away)) == "a", "somebody has to"
    recorded = replace(WORLD, finished=(0,))
    assert leader(Report(A, NodeIntent.FINISHED), ready(B, **away), ready(C, **away), record=recorded) == "b"


def test_who_has_finished_leads_until_it_is_recorded() -> None:
    """It may be the only one that knows who else has."""
    assert leader(Report(A, NodeIntent.FINISHED), ready(B)) == "a"
    assert leader(Report(A, NodeIntent.FINISHED), ready(B), record=replace(WORLD, finished=(0,))) == "b"


def test_who_is_retired_does_not_lead() -> None:
    everybody = replace(WORLD, finished=(0, 1, 2))
    done = [Report(each, NodeIntent.FINISHED) for each in (A, B, C)]
    assert leader(*done, record=everybody) == "a"
    assert leader(*done, record=replace(everybody, retired=(0,))) == "b"


def test_what_was_said_of_an_earlier_record_holds_no_more() -> None:
    assert leader(ready(A, yields=WORLD.version - 1)) == "a"
    assert leader(ready(A, hands_over=WORLD.version - 1)) == "a"


def test_one_that_is_told_to_leave_leads_until_it_hands_over() -> None:
    """If all are told, one after the other, nobody would lead for long."""
    assert leader(ready(A, leaving=True), ready(B)) == "a"


def test_that_its_workers_were_told_of_a_world_is_told_to_nobody_by_itself() -> None:
    election, own = Election("c", 1.0, 5.0, TIMEOUTS, 0.0), ready(C)
    assert election.tell(own)
    assert election.tell(replace(own, told=1, sequence=2)) == []
    (say,) = election.tell(replace(own, asks=True, told=1, sequence=3))
    assert isinstance(say, do.Say)


def test_those_who_have_withdrawn_do_not_lead() -> None:
    assert leader(Report(A, NodeIntent.AWAY), ready(replace(B, incarnation=2))) == "c"


def test_they_do_if_nobody_else_can_and_the_agents_keep_the_record() -> None:
    """Without their votes there is no next one."""
    withdrawn = [Report(m, NodeIntent.AWAY) for m in (A, B, C)]
    assert leader(*withdrawn) is None
    assert leader(*withdrawn, agrees=True) == "a"
    assert leader(*withdrawn[:2], Report(C, NodeIntent.FINISHED), agrees=True) == "c"


def test_nobody_leads_a_job_that_is_over_or_was_given_up() -> None:
    election, own = Election("c", 1.0, 5.0, TIMEOUTS, 0.0, True), ready(C)
    for last in (transitions.close(WORLD, ""), transitions.give_up(WORLD, Address("h", 1))):
        assert election.leader(last, own) is None


# --- what it says, and to whom


class Agent:
    """The election of one agent in WORLD, where the agents keep the record."""

    def __init__(self, placed: Member, record: Round | None = WORLD) -> None:
        self.own = ready(placed)
        self.record = record
        self.now = 10.0
        self.election = Election(placed.node, 1.0, 5.0, TIMEOUTS, self.now, True)
        if record is not None:
            self.election.adopt(record)
        self.advance()

    def advance(self, *, seeks: bool = False, founds: bool = True, despairs: bool = False) -> list[do.Effect]:
        return self.election.advance(self.record, self.own, seeks, founds=founds, despairs=despairs)

    def look(self, now: float) -> None:
        """It is awake until then."""
        while self.now < now:
            self.now = min(now, self.now + 1.0)
            self.election.look(self.now)

    def hear(self, node: str, message: Message) -> list[tuple[str | None, Message]]:
        return said(self.election.hear(node, message, self.own))

    def follow(self, node: str) -> None:
        """The link that it has dialled is up."""
        self.election.link_up(node, self.own)


def said(effects: list[do.Effect]) -> list[tuple[str | None, Message]]:
    return [(effect.node, effect.message) for effect in effects if isinstance(effect, do.Say)]


def dialled(effects: list[do.Effect]) -> list[str]:
    return [effect.member.node for effect in effects if isinstance(effect, do.Dial)]


def hung_up(effects: list[do.Effect]) -> list[str]:
    return [effect.node for effect in effects if isinstance(effect, do.HangUp)]


def proposals(effects: list[do.Effect]) -> list[Round]:
    return [effect.round for effect in effects if isinstance(effect, do.Propose)]


def test_a_new_link_begins_with_what_it_knows_and_a_beat_that_asks_for_one() -> None:
    agent = Agent(C)
    beat = Beat(at=10.0, grant_s=5.0, asks=True)
    hello = Hello(agent.own, beat=beat)
    assert said(agent.election.link_up("a", agent.own)) == [("a", hello)]
    assert said(agent.election.link_up("b", agent.own)) == [], "it follows another"


def test_a_beat_that_asks_for_one_is_answered_and_another_is_not() -> None:
    agent = Agent(A)
    agent.hear("b", ready(B))
    assert agent.hear("b", Beat(at=7.0, asks=True)) == [("b", Beat(at=10.0, echo=7.0, grant_s=0.0, leads=True))]
    assert agent.hear("b", Beat(at=8.0)) == []


def test_the_first_beat_of_its_leader_is_returned_at_once() -> None:
    """So the leader need not wait for the next one until it has its lease, and grants others."""
    agent = Agent(C)
    agent.hear("a", ready(A))
    agent.follow("a")
    assert agent.hear("a", Beat(at=7.0, leads=True)) == [("a", Beat(at=10.0, echo=7.0, grant_s=5.0))]
    assert agent.hear("a", Beat(at=8.0, leads=True)) == []


def test_the_beat_of_a_hello_is_answered_as_any_other_and_whoever_says_hello_is_asked_for_nothing() -> None:
    agent = Agent(A)
    hello = Hello(ready(B, WORLD.id), beat=Beat(at=7.0, asks=True))
    answers = [("b", agent.own), ("b", Beat(at=10.0, echo=7.0, grant_s=0.0, leads=True))]
    assert agent.hear("b", hello) == answers
    agent.now = 100.0  # nobody has heard it for long
    assert [type(message) for _, message in agent.hear("b", hello)] == [Report, Beat]


def test_whoever_beats_without_having_reported_is_greeted() -> None:
    agent = Agent(A)
    assert agent.hear("b", Beat(at=7.0)) == [("b", Hello(agent.own))]
    assert Agent(A, record=None).hear("b", Beat(at=7.0)) == [("b", Hello(ready(A)))]


def test_when_the_leaders_lease_stands_all_that_follow_get_theirs() -> None:
    agent = Agent(A)
    agent.hear("b", ready(B))
    agent.hear("c", ready(C))
    assert agent.hear("b", Beat(at=7.0, echo=9.5, grant_s=5.0)) == [], "c has granted none"
    answers = agent.hear("c", Beat(at=7.0, echo=9.8, grant_s=5.0))
    assert [node for node, _ in answers] == ["b", "c"]
    for _, beat in answers:
        assert isinstance(beat, Beat)
        assert beat.leads
        assert beat.grant_s == pytest.approx(9.5 + 5.0 * 0.99 - 10.0)


def test_who_dies_while_the_lease_stands_has_left_nobody_behind() -> None:
    agent = Agent(C)
    agent.follow("a")
    agent.election.mark_gone("b")
    assert not agent.election.leases.parted(["b"])
    agent.hear("a", Beat(at=7.0, echo=9.8, grant_s=5.0, leads=True))
    agent.election.mark_gone("b")
    assert agent.election.leases.parted(["b"])
    agent.hear("b", Beat(at=7.0))
    assert not agent.election.leases.parted(["b"]), "it lives"
    assert not agent.election.gone("b")


def test_a_member_whose_lease_is_to_end_is_granted_none_by_its_leader() -> None:
    """Else its workers would go on beside the next world, which is made when the store has ended that lease."""
    election = Election("a", 1.0, 5.0, replace(TIMEOUTS, converges=True), 0.0)
    leased = replace(WORLD, members=tuple(replace(m, lease_number=1) for m in WORLD.members))
    own, *others = (ready(m, asks=True) for m in leased.members)
    election.judge_by_leases()
    election.adopt(leased)
    election.leadership.lend(Address("host-a", 5000))
    effects: list[do.Effect] = []
    for now in range(7):
        election.look(float(now))
        for report in others if now == 0 else others[:1]:
            election.hear(report.member.node, Hello(replace(report, known=leased.id)), own)
            election.hear(report.member.node, Beat(1.0, echo=max(now, 0.1), grant_s=5.0), own)
        effects += election.advance(leased, own, seeks=False)
    assert do.EndLease("c", 1, by=1, version=leased.version) in effects
    heard = election.hear("c", Beat(2.0, echo=6.0, grant_s=5.0, asks=True), own)
    granted = {to: beat.grant_s for to, beat in said(heard) if isinstance(beat, Beat)}
    assert granted["c"] == 0.0
    assert granted["b"] > 0.0, "with the word of c this agent leads again"


def test_the_last_report_says_that_it_is_the_last() -> None:
    agent = Agent(C)
    ((_, words),) = said(agent.election.take_leave(agent.own, LastWords(difference(None, WORLD))))
    assert isinstance(words, LastWords)
    assert words.round == difference(None, WORLD)
    report = words.report
    assert report is not None
    assert report.ends
    assert report.sequence > agent.own.sequence, "or it would be taken for an older one"


# --- hosts that refuse


def test_one_that_has_refused_is_dialled_again_if_the_next_does_not_say_that_it_leads() -> None:
    """A firewall may have refused for the leader, which lives and leads the next one, too."""
    agent = Agent(C)
    agent.election.link_down("a", refused=True)
    assert dialled(agent.advance()) == ["b"]
    agent.follow("b")
    agent.look(14.9)
    agent.hear("b", Beat(at=7.0))
    assert not dialled(agent.advance())
    agent.look(15.1)
    assert min(at for at in agent.election.deadlines() if at is not None) <= 15.1, "it wakes up for it"
    assert dialled(agent.advance()) == ["a"]


def test_it_is_not_while_another_may_turn_out_to_be_dead() -> None:
    """Each time that others are dialled meanwhile, this agent would wait for that one anew."""
    agent = Agent(C)
    agent.election.link_down("a", refused=True)
    agent.look(10.5)
    assert dialled(agent.advance()) == ["b"], "which never answers"
    agent.look(15.2)
    assert not dialled(agent.advance())
    agent.look(15.6)
    agent.advance()
    assert agent.election.leadership.leading


def test_one_that_has_refused_is_left_alone_while_the_next_leads() -> None:
    agent = Agent(C)
    agent.election.link_down("a", refused=True)
    agent.advance()
    agent.follow("b")
    for _ in range(10):
        agent.look(agent.now + 1.0)
        agent.hear("b", Beat(at=7.0, leads=True))
        assert not dialled(agent.advance())


def test_one_that_leads_since_the_first_refused_dials_it_again_while_the_others_do_not_report_to_it() -> None:
    """A firewall may have refused for the first, and the others report to that. With leases in a store the silence of
    the others proves nothing, so this agent would wait for them for good."""
    agent = Agent(B)
    agent.election.judge_by_leases()
    agent.election.link_down("a", refused=True)
    agent.advance()
    agent.election.leadership.lend(Address("host-b", 5000))
    agent.advance()
    assert agent.election.leadership.waits_to_hear
    agent.look(14.9)
    assert not dialled(agent.advance())
    agent.look(15.1)
    assert min(at for at in agent.election.deadlines() if at is not None) <= 15.1, "it wakes up for it"
    assert dialled(agent.advance()) == ["a"]


def test_it_is_left_alone_while_the_others_report_to_the_next() -> None:
    agent = Agent(B)
    agent.election.judge_by_leases()
    agent.election.link_down("a", refused=True)
    agent.advance()
    agent.election.leadership.lend(Address("host-b", 5000))
    for _ in range(10):
        agent.look(agent.now + 1.0)
        agent.hear("c", ready(C))
        assert not dialled(agent.advance())


# --- nodes that were found


def test_a_node_that_was_found_is_greeted_and_by_a_leader_shown_the_record() -> None:
    agent = Agent(C)
    assert said(agent.election.found("d", agent.own)) == [("d", Hello(agent.own))]
    assert said(agent.election.found("a", agent.own)) == [], "it follows that one"
    assert said(agent.election.found("c", agent.own)) == [], "that is this agent"
    assert said(Agent(C, record=None).election.found("d", agent.own)) == [("d", Hello(agent.own))]
    shown = do.Say("d", Record(WORLD))
    assert Agent(A).election.found("d", agent.own, [shown]) == [shown]


def test_a_link_to_a_node_that_turns_out_to_be_the_leader_is_kept() -> None:
    agent = Agent(C, record=None)
    agent.election.found("a", agent.own)
    agent.record = WORLD
    agent.election.adopt(WORLD)
    effects = agent.advance()
    assert not dialled(effects)
    assert not hung_up(effects)
    assert agent.election.hears_leader()
    beat = Beat(at=10.0, grant_s=5.0, asks=True)
    assert ("a", Hello(agent.own, beat=beat)) in said(effects)


def test_a_link_to_another_is_closed_once_it_has_answered() -> None:
    agent = Agent(C, record=None)
    agent.election.found("b", agent.own)
    assert not hung_up(agent.advance()), "without a record it may have no other"
    agent.record = WORLD
    agent.election.adopt(WORLD)
    effects = agent.advance()
    assert dialled(effects) == ["a"]
    assert not hung_up(effects), "what it says may still arrive"
    agent.hear("b", ready(B))
    assert hung_up(agent.advance()) == ["b"]


def test_a_leader_closes_it_when_the_other_has_dialled_by_itself() -> None:
    agent = Agent(A)
    assert agent.election.greeted("d") == []
    agent.election.found("d", agent.own)
    assert agent.election.in_touch("d")
    assert agent.election.greeted("d") == [do.HangUp("d")]
    assert not agent.election.in_touch("d")


def test_who_is_in_touch_need_not_be_looked_for() -> None:
    follower, leads = Agent(C), Agent(A)
    assert not follower.election.in_touch("a"), "the link is not up yet"
    follower.follow("a")
    assert follower.election.in_touch("a")
    follower.hear("b", ready(B))
    assert not follower.election.in_touch("b"), "it has reported once, on a link that may be gone"
    assert not leads.election.in_touch("b")
    leads.hear("b", ready(B))
    assert leads.election.in_touch("b")
    leads.election.link_down("b", refused=False)
    assert not leads.election.in_touch("b")


# --- beginning anew


D = member("d")


def test_a_newcomer_begins_anew_when_all_members_are_gone_and_it_is_the_one_to_found_the_job() -> None:
    agent = Agent(D)
    for node in "ab":
        agent.election.mark_gone(node)
    assert not proposals(agent.advance(seeks=True)), "c may live"
    agent.election.mark_gone("c")
    assert not proposals(agent.advance(seeks=True, founds=False)), "others may know more, and one of them founds it"
    (anew,) = proposals(agent.advance(seeks=True))
    assert [m.node for m in anew.members] == ["d"]


@pytest.mark.parametrize("despairs", [True, False])
def test_a_newcomer_begins_anew_beside_members_that_refuse_only_when_it_has_looked_for_them_for_long(
    despairs: bool,
) -> None:
    """They may be in a world, and it may be its own host's firewall that refuses."""
    agent = Agent(D)
    for node in "abc":
        agent.election.link_down(node, refused=True)
    assert len(proposals(agent.advance(seeks=True, despairs=despairs))) == int(despairs)


def test_a_job_whose_nodes_had_begun_to_finish_is_over_when_they_are_gone() -> None:
    finishing = replace(WORLD, finishing=True)
    agent = Agent(D, finishing)
    for node in "abc":
        agent.election.mark_gone(node)
    (last,) = proposals(agent.advance(seeks=True, founds=False))
    assert (last.phase, last.outcome) == (Phase.CLOSED, "")


def test_the_last_member_begins_anew_when_it_is_withdrawn_itself_and_the_others_are_gone() -> None:
    """It has a say in the next record still, and no world of its own to be in."""
    agent = Agent(replace(C, incarnation=2))
    for node in "ab":
        agent.election.mark_gone(node)
    (anew,) = proposals(agent.advance(seeks=True, founds=False))
    assert [(m.node, m.incarnation) for m in anew.members] == [("c", 2)]
