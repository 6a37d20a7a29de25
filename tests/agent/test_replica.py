"""How the members of a record agree on the next one, message by message.

What holds in whatever order messages come is in `test_agreement`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_replica import FAST, FIRST, FOUR, JOB, SECOND, A, Agent, Ask, B, C, D, Vow, after
from values import known, member, of_job, opened, ready, sealed, words_of

from softrun.agent.protocol.effects import Say
from softrun.agent.protocol.model import (
    Accepted,
    Ballot,
    Decided,
    Hello,
    Prepare,
    Record,
    Refused,
    Round,
)

# --- the first member, in its first ballot


def test_the_first_member_asks_at_once_and_decides_when_all_have_accepted() -> None:
    a, b, c = (Agent(node) for node in "abc")
    assert a.propose(SECOND) == [(None, Ask(FAST, SECOND))]
    assert list(a.replica.missing) == ["b", "c"]
    assert b.hear("a", Ask(FAST, SECOND)) == [("a", Accepted(FAST))]
    assert c.hear("a", Ask(FAST, SECOND)) == [("a", Accepted(FAST))]
    assert b.record == FIRST, "it is not decided yet"
    assert a.hear("b", Accepted(FAST)) == []
    assert a.record == FIRST, "a silent member may be asked later, and must know what was agreed on"
    assert a.hear("c", Accepted(FAST)) == [(None, Decided(FAST))]
    assert a.record == SECOND
    assert a.replica.take() == SECOND
    assert a.replica.take() is None
    assert list(a.replica.missing) == []
    b.hear("a", Decided(FAST))
    assert b.record == SECOND


def test_who_is_alone_decides_at_once() -> None:
    agent = Agent("a", record=of_job(JOB, opened(A)))
    following = after(agent.record, A)
    assert agent.propose(following) == [(None, Ask(FAST, following)), (None, Decided(FAST))]
    assert agent.record == following


def test_who_is_not_a_member_keeps_what_is_asked_and_learns_that_it_is_decided() -> None:
    newcomer = Agent("d")
    assert newcomer.hear("a", Ask(FAST, SECOND)) == [], "nobody waits for it"
    newcomer.hear("a", Decided((1, "b")))
    assert newcomer.record == FIRST, "that is another ballot"
    newcomer.hear("a", Decided(FAST))
    assert newcomer.record == SECOND


def test_nobody_promises_anything_who_is_not_a_member() -> None:
    assert Agent("d").hear("b", Prepare((1, "b"))) == []


def test_a_proposal_that_may_have_been_accepted_is_not_changed() -> None:
    agent = Agent("a")
    agent.propose(SECOND)
    assert agent.propose(after(FIRST, A)) == []
    agent.hear("b", Accepted(FAST))
    agent.hear("c", Accepted(FAST))
    assert agent.record == SECOND


def test_a_proposal_for_another_version_is_none() -> None:
    agent = Agent("a")
    assert agent.propose(after(FIRST, A, version=9)) == []
    assert list(agent.replica.missing) == []


# --- any member, in two steps


def test_another_member_asks_for_promises_first() -> None:
    agent, ballot = Agent("b"), (1, "b")
    agent.gone.add("a")
    following = after(FIRST, B, C)
    assert agent.propose(following) == [(None, Prepare(ballot))]
    assert agent.hear("c", Vow(ballot)) == [(None, Ask(ballot, following))]
    assert agent.hear("c", Accepted(ballot)) == [(None, Decided(ballot))]
    assert agent.record == following


def following(name: str, record: Round = FIRST) -> tuple[Agent, Ballot | None]:
    """A voter that has just begun to follow b, and what it promises it."""
    agent = Agent(name, record)
    agent.gone.add("a")
    return agent, agent.replica.promise_ahead("b")


def test_those_that_begin_to_follow_it_promise_before_they_are_asked() -> None:
    agent, wish = Agent("b", FOUR), after(FOUR, B, C, D)
    agent.gone.add("a")
    for name in "cd":
        _, promise = following(name, FOUR)
        assert promise == (1, "b")
        assert agent.greet(name, FOUR.version, JOB, promise) == []
    assert agent.propose(wish) == [(None, Ask((1, "b"), wish))]


def test_the_others_are_asked_and_they_alone() -> None:
    agent, wish = Agent("b", FOUR), after(FOUR, B, C, D)
    agent.gone.add("a")
    agent.greet("c", FOUR.version, JOB, (1, "b"))
    assert agent.propose(wish) == [("d", Prepare((1, "b"))), ("a", Prepare((1, "b")))]
    assert agent.greet("d", FOUR.version, JOB, (1, "b")) == [(None, Ask((1, "b"), wish))], "or it promises by itself"


@pytest.mark.parametrize(
    ("version", "lineage", "promise"), [(1, JOB, (1, "b")), (2, "x@1", (1, "b")), (2, JOB, (1, "x"))]
)
def test_a_promise_about_another_record_or_to_another_node_is_none(version: int, lineage: str, promise: Ballot) -> None:
    agent = Agent("b")
    agent.gone.add("a")
    agent.greet("c", version, lineage, promise)
    assert agent.propose(after(FIRST, B, C)) == [(None, Prepare((1, "b")))]


def test_who_has_promised_accepts_nothing_from_lower_ballots() -> None:
    agent, _ = following("c")
    assert agent.hear("a", Ask(FAST, SECOND)) == [("a", Refused((1, "b")))]
    assert agent.replica.promise_ahead("b") == (1, "b"), "still"
    assert agent.replica.promise_ahead("a") == (2, "a"), "a higher one"
    assert agent.hear("b", Ask((1, "b"), after(FIRST, B, C))) == [("b", Refused((2, "a")))]


def test_a_first_member_that_was_promised_a_higher_ballot_uses_that() -> None:
    agent = Agent("a")
    agent.greet("b", FIRST.version, JOB, (2, "a"))
    assert agent.propose(SECOND) == [("c", Prepare((2, "a")))]


@pytest.mark.parametrize("why", ["it has accepted something", "it is no voter", "its leader needs no promise"])
def test_nothing_is_promised_ahead_if(why: str) -> None:
    agent = Agent("d" if why == "it is no voter" else "c")
    if why == "it has accepted something":
        agent.hear("a", Ask(FAST, SECOND))
    assert agent.replica.promise_ahead("a" if why == "its leader needs no promise" else "b") is None


def test_before_anybody_is_asked_to_accept_the_wish_may_change() -> None:
    agent, ballot = Agent("b"), (1, "b")
    agent.gone.add("a")
    agent.propose(after(FIRST, B, C))
    newer = after(FIRST, B)
    assert agent.propose(newer) == [], "it has asked already"
    assert agent.hear("c", Vow(ballot)) == [(None, Ask(ballot, newer))]


def test_what_one_accepted_before_its_proposer_died_is_what_is_decided() -> None:
    """It may have been decided, and may have been told."""
    agent, ballot = Agent("b"), (1, "b")
    agent.gone.add("a")
    assert agent.propose(after(FIRST, B, C)) == [(None, Prepare(ballot))]
    said = agent.hear("c", Vow(ballot, FAST, SECOND))
    assert said == [(None, Ask(ballot, SECOND))]
    agent.hear("c", Accepted(ballot))
    assert agent.record == SECOND


def test_who_proposed_it_knows_whether_all_of_its_members_have_accepted_it() -> None:
    """One that has not may have called the proposer dead long ago, so to be the proposer is no lease."""
    for members, by_all in (((A, B), False), ((B, C), True), ((B, C, D), True)):
        agent, ballot, asked = Agent("b"), (1, "b"), after(FIRST, *members)
        agent.gone.add("a")
        agent.propose(after(FIRST, B, C))
        agent.hear("c", Vow(ballot, FAST, asked))
        agent.hear("c", Accepted(ballot))
        assert agent.record == asked
        assert agent.replica.accepted_by_all == by_all
    agent.replica.read(after(agent.record, B))
    assert not agent.replica.accepted_by_all, "that was decided by others"


def test_so_is_what_it_has_accepted_itself() -> None:
    agent, ballot = Agent("b"), (1, "b")
    agent.hear("a", Ask(FAST, SECOND))
    agent.gone.add("a")
    agent.propose(after(FIRST, B, C))
    assert agent.hear("c", Vow(ballot)) == [(None, Ask(ballot, SECOND))]


def test_of_several_the_one_of_the_highest_ballot() -> None:
    agent = Agent("b")
    agent.hear("c", Ask((1, "c"), after(FIRST, B, C)))
    agent.gone.add("a")
    agent.propose(after(FIRST, B))
    assert agent.hear("c", Vow((2, "b"), FAST, SECOND)) == [(None, Ask((2, "b"), after(FIRST, B, C)))]


def test_after_a_refusal_the_next_ballot_is_higher_than_the_one_that_was_promised() -> None:
    agent = Agent("a")
    agent.propose(SECOND)
    agent.hear("b", Refused((4, "c")))
    assert list(agent.replica.missing) == [], "the engine proposes again after a while"
    assert agent.propose(SECOND) == [(None, Prepare((5, "a")))]


def test_what_nobody_was_asked_to_accept_has_come_to_nothing_when_it_is_refused() -> None:
    first, agent = Agent("a"), Agent("b")
    agent.gone.add("a")
    agent.propose(after(FIRST, B, C))
    agent.hear("c", Refused((7, "c")))
    assert agent.replica.dropped
    first.propose(SECOND)
    first.hear("c", Refused((7, "c")))
    assert not first.replica.dropped, "b may have accepted it"
    first.propose(SECOND)
    first.hear("c", Refused((9, "c")))
    assert not first.replica.dropped, "nor when the next ballot is refused before it gets that far"
    agent.propose(after(FIRST, B, C))
    assert not agent.replica.dropped


def test_an_answer_to_another_ballot_or_version_is_none() -> None:
    agent = Agent("a", record=of_job(JOB, sealed(A, B)))
    agent.propose(after(agent.record, A))
    earlier = known(1, JOB)
    for answer in (Accepted((1, "a")), Accepted(FAST, earlier), Vow(FAST), Refused((9, "b"), earlier)):
        assert agent.hear("b", answer) == []
    assert list(agent.replica.missing) == ["b"]


# --- refusals


def test_a_lower_ballot_is_refused() -> None:
    agent = Agent("c")
    assert agent.hear("b", Prepare((2, "b"))) == [("b", Vow((2, "b")))]
    assert agent.hear("a", Ask(FAST, SECOND)) == [("a", Refused((2, "b")))]
    assert agent.hear("a", Prepare((1, "a"))) == [("a", Refused((2, "b")))]
    assert agent.hear("b", Prepare((2, "b"))) == [("b", Vow((2, "b")))], "it may not have been heard before"
    assert agent.hear("a", Prepare((3, "a"))) == [("a", Vow((3, "a")))]


def test_of_two_ballots_of_one_number_the_node_decides() -> None:
    agent = Agent("c")
    agent.hear("b", Prepare((1, "b")))
    assert agent.hear("a", Prepare((1, "a"))) == [("a", Refused((1, "b")))]


def test_a_promise_says_what_was_accepted_and_when() -> None:
    agent = Agent("c")
    agent.hear("a", Ask(FAST, SECOND))
    assert agent.hear("b", Prepare((1, "b"))) == [("b", Vow((1, "b"), FAST, SECOND))]


def test_a_decision_holds_for_the_ballot_in_which_it_was_accepted() -> None:
    agent = Agent("c")
    agent.hear("a", Ask(FAST, SECOND))
    agent.hear("b", Decided((1, "b")))
    assert agent.record == FIRST, "it does not know what was to be accepted there"


def test_what_is_said_of_another_version_changes_nothing() -> None:
    agent = Agent("c")
    before, next_one = known(1, JOB), after(FIRST, B)
    for message in (Prepare((7, "b"), next_one.id), Ask((7, "b"), after(next_one, B), next_one.id)):
        assert agent.hear("b", message) == []
    for message in (Prepare((7, "b"), before), Ask((7, "b"), after(FIRST, B, version=2), before)):
        ((_, shown),) = agent.hear("b", message)
        assert isinstance(shown, Record)
        assert shown.round == FIRST, "the one that asks has missed it"
    assert agent.hear("a", Ask(FAST, SECOND)) == [("a", Accepted(FAST))]


def test_a_new_version_begins_with_no_promises() -> None:
    agent = Agent("b")
    agent.hear("c", Prepare((7, "c")))
    agent.replica.read(SECOND)
    assert agent.hear("a", Prepare((1, "a"))) == [("a", Vow((1, "a")))]


def test_who_has_promised_a_higher_ballot_does_not_go_on_with_its_own() -> None:
    """It would vote in both: the others could decide one record and it another."""
    agent = Agent("b")
    agent.silent |= {"a"}
    agent.propose(after(FIRST, B, C))
    assert agent.hear("c", Prepare((2, "c"))) == [("c", Vow((2, "c")))]
    assert agent.hear("c", Vow((1, "b"))) == []
    assert agent.hear("c", Ask((2, "c"), after(FIRST, C))) == [("c", Accepted((2, "c")))]
    assert agent.propose(after(FIRST, B, C)) == [(None, Prepare((3, "b")))], "a higher one is another matter"


# --- whoever has split from this job


def test_votes_on_another_record_of_the_same_version_are_not_mixed() -> None:
    """Two records of one job contradict each other; their leaders ask in ballots of the same number."""
    agent = Agent("c", record=SECOND)
    other = after(FIRST, A, B, C)
    assert agent.hear("a", Ask(FAST, after(other, A), other.id)) == []
    assert agent.hear("b", Prepare((1, "b"), other.id)) == []
    agent.hear("a", Ask(FAST, after(SECOND, C)))
    agent.hear("a", Decided(FAST, other.id))
    assert agent.record == SECOND


def test_who_greets_from_there_is_shown_this_record_and_told_what_it_does_not_follow() -> None:
    agent, other = Agent("b", record=after(SECOND, A)), after(FIRST, B, C)
    hello = Hello(ready(member("c"), other.id))
    (shown,) = agent.replica.greet("c", hello)
    assert shown == Say("c", Record(agent.record, stands=True, apart_from=other.name))


def test_last_words_from_there_tell_nothing_about_this_one() -> None:
    agent = Agent("a")
    agent.bury("b", "c", words=words_of(replace(FIRST, name="?")))
    agent.propose(after(FIRST, A))
    assert agent.record == FIRST, "they may have voted here, and forgotten it"


@pytest.mark.parametrize("proved", [True, False])
def test_all_that_are_told_of_a_decision_know_whether_less_than_a_quorum_made_it(proved: bool) -> None:
    before, dead = (FOUR, "ad") if proved else (FIRST, "a")
    leader, follower = Agent("b", before), Agent("c", before)
    leader.bury(*dead)
    leader.propose(after(before, B, C))
    leader.hear("c", Vow((1, "b")))
    asked = leader.replica._attempt
    assert asked is not None
    assert asked.accept is not None
    follower.hear("b", asked.accept)
    for effect in leader.replica.hear("c", Accepted((1, "b"), leader.record.id)) + leader.replica.advance():
        assert isinstance(effect, Say)
        assert isinstance(effect.message, Decided)
        assert effect.message.by_proof is proved
        follower.hear("b", effect.message)
    for agent in (leader, follower):
        assert agent.record.by_proof == (((3, agent.record.name),) if proved else ())
    assert leader.record.name == follower.record.name


# --- who is not a member


def test_the_first_record_needs_nobody() -> None:
    agent = Agent("a", record=None)
    first = opened(A)
    assert agent.begin(first) == [(None, Record(agent.record, stands=True))]
    assert agent.record == of_job("a@1", first)


def test_who_is_not_a_member_begins_a_job_of_its_own() -> None:
    """It votes in none: should the members live after all, there are two jobs, which know each other by their names."""
    agent = Agent("d")
    agent.begin(after(FIRST, D))
    assert agent.record == of_job("d@3", after(FIRST, D))


def test_a_proposal_begins_nothing() -> None:
    """Who proposes and has no vote has been left out since, and the others have a world without it."""
    agent = Agent("d")
    assert agent.propose(after(FIRST, D)) == []
    assert agent.record == FIRST


def test_nothing_begins_from_an_older_record() -> None:
    agent = Agent("d", record=SECOND)
    assert agent.begin(after(FIRST, D)) == []
    assert agent.record == SECOND


def test_a_member_begins_nothing() -> None:
    with pytest.raises(AssertionError, match="a member may not begin anew"):
        Agent("a").begin(SECOND)


def test_who_is_one_keeps_the_job() -> None:
    agent = Agent("a")
    agent.bury("b", "c")
    agent.propose(after(FIRST, A))
    assert agent.record.lineage == JOB


def test_no_two_jobs_have_one_name() -> None:
    agent = Agent("d")
    agent.begin(after(FIRST, D))
    agent.replica.read(FIRST)  # the members have shown that they live, and it has given its own job up
    agent.begin(after(FIRST, D, number=7))
    assert (agent.record.lineage, agent.record.version) == ("d@4", 4)


# --- who knows less, or more


def test_one_that_knows_an_older_record_is_shown_the_newest() -> None:
    agent = Agent("a")
    assert agent.greet("d") == [("d", Record(FIRST, stands=True))]
    assert agent.greet("c", 1, JOB) == [("c", Record(FIRST, stands=True))]
    assert agent.greet("c", 2, JOB) == []
    assert agent.greet("c", 7, "c@1") == [("c", Record(FIRST, stands=True))], "it is of another job"
    agent.sure = False
    assert agent.greet("d") == [("d", Record(FIRST))]


def test_who_knows_none_shows_none() -> None:
    agent = Agent("d", record=None)
    assert agent.greet("a", 2, JOB) == []
    assert agent.replica.show("a") == []


def test_a_greeting_is_answered_with_what_is_under_way() -> None:
    """What was asked before went over a link that is lost."""
    agent = Agent("a")
    agent.propose(SECOND)
    assert agent.greet("b", 2, JOB) == [("b", Ask(FAST, SECOND))]
    assert agent.greet("b", 1, JOB) == [("b", Record(FIRST, stands=True)), ("b", Ask(FAST, SECOND))]
    assert agent.greet("b", 3, JOB) == [], "it knows more"
    agent.hear("b", Refused((1, "c")))
    agent.propose(SECOND)
    assert agent.greet("b", 2, JOB) == [("b", Prepare((2, "a")))]


def test_a_record_never_goes_back_within_a_job() -> None:
    agent = Agent("b", record=SECOND)
    assert agent.compare("c", FIRST) == [("c", Record(SECOND, stands=True))]
    assert agent.compare("c", SECOND) == []
    assert agent.compare("c", after(SECOND, B)) is None, "that is news"


def test_a_job_that_was_left_is_not_gone_back_in_either() -> None:
    agent = Agent("b", record=SECOND)
    other = of_job("c@1", sealed(C))
    assert agent.compare("c", other) is None, "which job goes on is not this file's business"
    agent.replica.read(other)
    assert agent.compare("a", FIRST) == [("a", Record(SECOND))], "it is not this agent's any more"
    assert agent.compare("a", SECOND) == [], "b has voted on the next one there and forgotten how"
    assert agent.compare("a", after(SECOND, A)) is None


def test_one_that_never_voted_there_comes_back_to_a_job_that_has_not_changed_meanwhile() -> None:
    """It could not reach the members, began anew, and hears them now."""
    agent = Agent("d")
    agent.begin(after(FIRST, D))
    assert agent.record.lineage == "d@3"
    assert agent.compare("a", FIRST) is None


def test_what_is_said_in_another_job_is_not_voted_on() -> None:
    """The jobs have records of the same version, and one of their agents hears both leaders."""
    agent = Agent("b")
    foreign = of_job("x@1", SECOND)
    assert agent.hear("x", Ask((0, "x"), foreign, known(2, "x@1"))) == []
    agent.hear("x", Decided((0, "x"), known(2, "x@1")))
    assert agent.record == FIRST
    assert agent.hear("c", Prepare((1, "c"))) == [("c", Vow((1, "c")))]


def test_what_another_job_has_decided_is_not_what_was_accepted_in_this_one() -> None:
    """Though it was decided in a ballot of the same number and node."""
    agent = Agent("c")
    agent.hear("a", Ask(FAST, SECOND))
    agent.hear("a", Decided(FAST, known(2, "x@1")))
    assert agent.record == FIRST
    agent.hear("a", Decided(FAST, FIRST.id))
    assert agent.record == SECOND


def test_nor_is_this_job_bound_to_what_another_has_accepted() -> None:
    agent, ballot = Agent("b"), (1, "b")
    agent.gone.add("a")
    agent.propose(after(FIRST, B, C))
    assert agent.hear("x", Vow(ballot, (0, "x"), of_job("x@1", SECOND), known(2, "x@1"))) == []
    assert agent.hear("c", Vow(ballot)) == [(None, Ask(ballot, after(FIRST, B, C)))]
