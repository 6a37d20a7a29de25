"""Who must have accepted a record before it is decided: which members, and when the witness."""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_replica import FAST, FIRST, JOB, SECOND, A, Agent, Ask, B, C, D, Vow, after
from values import following, member, of_job, sealed, words_of

from softrun.agent.protocol.model import (
    Accepted,
    Decided,
    Prepare,
    Round,
)

# --- who must have accepted it


def test_without_a_silent_member_a_quorum_is_needed() -> None:
    agent = Agent("a", record=of_job(JOB, sealed(A, B, C, D)))
    following = after(agent.record, A, B, C)
    agent.silent.add("d")
    agent.propose(following)
    agent.hear("b", Accepted(FAST))
    assert agent.record != following, "a and b are enough, but c is not silent"
    agent.silent.add("c")
    assert agent.learn() == [(None, Decided(FAST))]


@pytest.mark.parametrize(("node", "silent", "decides"), [("a", "cd", True), ("c", "ab", False), ("b", "cd", False)])
def test_exactly_half_go_on_without_the_silent_ones_only_with_the_first_member(
    node: str, silent: str, decides: bool
) -> None:
    agent = Agent(node, record=of_job(JOB, sealed(A, B, C, D)))
    agent.silent |= set(silent)
    if node == "b":
        agent.silent.add("a")  # the first member does not answer, either
    assert bool(agent.propose(after(agent.record, member(node)))) is decides
    assert agent.replica.short is not decides


def test_who_has_finished_has_a_vote_until_it_is_retired() -> None:
    finished = replace(FIRST, finishing=True, finished=(2,))
    for record in (finished, replace(finished, retired=(2,))):
        agent = Agent("a", record=record)
        agent.silent |= {"b", "c"}
        alone = following(record, number=2, members=(A,), finished=(), retired=())
        assert bool(agent.propose(alone)) is bool(record.retired), "then it is one of two, and the first"


def test_nothing_is_proposed_that_cannot_be_decided() -> None:
    """Nobody may accept it: the others could decide something else meanwhile, and would be bound to it."""
    agent = Agent("a")
    agent.silent |= {"b", "c"}
    assert agent.propose(after(FIRST, A)) == []
    assert agent.replica.short
    agent.silent.discard("b")
    assert agent.propose(after(FIRST, A, B)) == [(None, Ask(FAST, after(FIRST, A, B)))]
    assert not agent.replica.short
    agent.replica.read(after(FIRST, A, B, version=9))
    assert not agent.replica.short


def test_too_few_that_are_in_touch_are_named_again_for_the_next_record() -> None:
    agent = Agent("a")
    agent.silent |= {"b", "c"}
    agent.propose(after(FIRST, A))
    agent.replica.read(SECOND)
    assert not agent.replica.short


def test_those_that_have_ended_are_not_waited_for_even_if_they_are_many() -> None:
    agent = Agent("a")
    agent.bury("b")
    agent.propose(after(FIRST, A))
    assert agent.record == FIRST
    assert agent.bury("c") == [(None, Decided(FAST))]


def test_that_nobody_listens_any_more_proves_nothing() -> None:
    """A firewall may have refused, or somebody who forges packets."""
    agent = Agent("c")
    agent.gone |= {"a", "b"}
    assert agent.propose(after(FIRST, C)) == []
    assert agent.replica.short, "a may have left it behind, with b"
    agent.bury("b")
    assert agent.propose(after(FIRST, C)) == []
    agent.bury("a")
    assert agent.propose(after(FIRST, C))
    assert agent.record == after(FIRST, C)
    assert agent.record.by_proof == ((3, agent.record.name),), "and the record tells on what grounds"


def test_more_than_half_go_on_at_once_without_those_that_refuse() -> None:
    agent = Agent("a")
    agent.refusing.add("c")
    agent.propose(after(FIRST, A, B))
    agent.hear("b", Accepted(FAST))
    assert agent.record == after(FIRST, A, B)


def test_half_go_on_without_those_that_refuse_once_they_are_silent_as_well() -> None:
    agent = Agent("a", record=of_job(JOB, sealed(A, B)))
    agent.refusing.add("b")
    assert agent.propose(after(agent.record, A)) == []
    assert agent.replica.short
    agent.silent.add("b")
    assert agent.propose(after(agent.record, A))
    assert agent.record.members == (A,)


def test_some_that_have_ended_do_not_excuse_the_silence_of_others() -> None:
    agent = Agent("d", record=of_job(JOB, sealed(A, B, C, D)))
    agent.bury("a", "b")
    agent.silent |= {"c"}
    assert agent.propose(after(agent.record, D)) == []
    assert agent.replica.short


def test_of_four_two_go_on_without_a_dead_and_a_silent_one() -> None:
    agent = Agent("c", record=of_job(JOB, sealed(A, B, C, D)))
    next_ = after(agent.record, C, D)
    agent.bury("a")
    agent.silent.add("b")
    assert agent.propose(next_) == [(None, Prepare((1, "c")))]
    assert agent.hear("d", Vow((1, "c"))) == [(None, Ask((1, "c"), next_))]
    agent.hear("d", Accepted((1, "c")))
    assert agent.record.members == (C, D)
    assert agent.record.by_proof, "nobody could say so without the last words of a"


@pytest.mark.parametrize(("node", "decides"), [("c", True), ("d", False)])
def test_of_two_that_are_left_of_four_the_first_goes_on_without_the_other(node: str, decides: bool) -> None:
    agent = Agent(node, record=of_job(JOB, sealed(A, B, C, D)))
    agent.bury("a", "b")
    agent.silent |= {"c", "d"} - {node}
    assert bool(agent.propose(after(agent.record, member(node)))) is decides
    assert agent.replica.short is not decides


def test_its_own_ballot_is_not_below_what_the_dead_had_promised() -> None:
    """Others may count on that promise."""
    agent, another = Agent("a"), one_that_knew(FIRST)
    another.hear("c", Prepare((4, "c")))
    agent.silent.add("c")
    assert agent.propose(after(FIRST, A, B)) == [(None, Ask(FAST, after(FIRST, A, B)))]
    assert agent.bury("b", words=another.replica.last_words) == []
    assert agent.record == FIRST
    assert agent.propose(after(FIRST, A))[0] == (None, Prepare((5, "a")))


def test_what_the_dead_had_agreed_on_is_decided_first() -> None:
    """They were more than half, so they may have told others of it."""
    agent, theirs = Agent("c"), after(FIRST, A, B)
    agent.bury("a", "b", words=words_of(FIRST, (1, "b"), theirs))
    agent.propose(after(FIRST, C))
    assert agent.record == theirs


def test_one_that_has_ended_may_have_known_a_newer_record() -> None:
    agent = Agent("c")
    agent.bury("a", words=words_of(SECOND))
    assert agent.record == SECOND, "it was left behind"


def test_one_that_has_ended_with_an_older_record_had_no_vote_on_the_next() -> None:
    agent = Agent("a", record=SECOND)
    agent.bury("b", words=words_of(FIRST, FAST, SECOND))
    agent.propose(after(SECOND, A))
    assert agent.record == after(SECOND, A)


def test_its_own_ballot_is_above_those_of_the_dead() -> None:
    """The fast ballot asks nobody what was accepted before."""
    agent, theirs = Agent("a"), after(FIRST, B, C)
    agent.propose(after(FIRST, A, B, C))
    assert agent.bury("b", "c", words=words_of(FIRST, (1, "b"), theirs)) == []
    agent.propose(after(FIRST, A))
    assert agent.record == theirs


def test_who_is_no_member_takes_over_what_the_dead_had_agreed_on() -> None:
    agent, theirs = Agent("d"), after(FIRST, B, C)
    agent.bury("a", "b")
    assert agent.record == FIRST
    agent.bury("c", words=words_of(FIRST, (1, "b"), theirs))
    assert agent.record == theirs


def test_last_words_are_of_another_job_only_if_it_is_this_one() -> None:
    agent = Agent("a", record=of_job(JOB, sealed(A, B)))
    agent.bury("b", words=words_of(of_job("b@1", agent.record)))
    assert agent.propose(after(agent.record, A)) == []
    assert agent.replica.short, "nobody knows what it had accepted in this one"


def one_that_knew(record: Round, *newer: Round) -> Agent:
    """One that has ended, after it knew these."""
    dead = Agent("b", record=record)
    for each in newer:
        dead.replica.read(each)
    return dead


def test_last_words_in_short_are_enough_for_who_has_that_record_or_the_one_before() -> None:
    dead = one_that_knew(FIRST, SECOND)
    theirs = after(SECOND, A)
    dead.hear("a", Ask((3, "a"), theirs))
    words = dead.replica.last_words
    assert words.round is not None
    assert words.round.round.members == (), "nobody is named that the one before has"
    for known in (FIRST, SECOND):
        agent = Agent("a", record=known)
        assert agent.replica.bury("b", words)
        assert agent.record == SECOND
        agent.propose(after(SECOND, A, C))
        assert agent.record == theirs, "it had voted for this one"


def test_who_has_neither_is_to_ask_in_full() -> None:
    third = after(SECOND, A, B, C)
    dead, agent = one_that_knew(FIRST, SECOND, third), Agent("a")
    assert not agent.replica.bury("b", dead.replica.last_words)
    assert agent.record == FIRST
    agent.gone.add("b")
    agent.silent.add("c")
    assert agent.propose(after(FIRST, A)) == [], "what b had accepted is not known"
    assert agent.replica.bury("b", dead.replica.last_words_in_full)
    assert agent.record == third


def test_who_has_gone_on_meanwhile_understands_them_as_well() -> None:
    """It said which record it had, and has heard of the next one since."""
    beside, agent = after(FIRST, A, C), Agent("a")
    words = one_that_knew(FIRST, SECOND).replica.last_words
    agent.replica.read(SECOND)
    assert agent.replica.bury("b", words)
    agent = Agent("a", record=beside)
    assert agent.replica.bury("b", words), "and in another branch they tell nothing"
    assert agent.record == beside


def test_a_vote_for_what_is_no_next_record_is_not_clear() -> None:
    words, agent = words_of(FIRST, (1, "b"), SECOND), Agent("a", record=SECOND)
    assert words.accepted is not None
    wrong = replace(words, accepted=replace(words.accepted, members=((0, 9),)))
    assert not one_that_knew(FIRST).replica.bury("c", wrong)
    assert agent.replica.bury("b", wrong), "it is about another record"


# --- with a witness

PAIR = of_job(JOB, sealed(A, B), version=2, witness="w")


def test_the_witness_is_asked_with_the_members_and_waited_for_only_if_it_is_needed() -> None:
    agent, following = Agent("a", record=PAIR), after(PAIR, A, B)
    assert agent.propose(following) == [(None, Ask(FAST, following)), ("w", Ask(FAST, following))]
    assert list(agent.replica.missing) == ["b", "w"]
    assert agent.hear("b", Accepted(FAST)) == [(None, Decided(FAST)), ("w", Decided(FAST))]
    assert agent.hear("w", Accepted(FAST)) == [], "it comes too late, which costs nothing"


def test_with_the_witness_one_of_two_goes_on_without_the_silent_other() -> None:
    agent, ballot = Agent("b", record=PAIR), (1, "b")
    agent.silent.add("a")
    assert agent.propose(after(PAIR, B)) == [(None, Prepare(ballot)), ("w", Prepare(ballot))]
    assert agent.hear("w", Vow(ballot)) == [
        (None, Ask(ballot, after(PAIR, B))),
        ("w", Ask(ballot, after(PAIR, B))),
    ]
    assert agent.hear("w", Accepted(ballot)) == [(None, Decided(ballot)), ("w", Decided(ballot))]


@pytest.mark.parametrize("node", ["a", "b"])
def test_without_it_neither_does_nor_the_first(node: str) -> None:
    agent = Agent(node, record=PAIR)
    agent.silent |= {"a", "b", "w"} - {node}
    assert agent.propose(after(PAIR, member(node))) == []
    assert agent.replica.short


def test_what_the_witness_has_accepted_is_what_is_agreed_on() -> None:
    """The first may have decided it before it fell silent."""
    agent, ballot = Agent("b", record=PAIR), (1, "b")
    agent.silent.add("a")
    agent.propose(after(PAIR, B))
    theirs = after(PAIR, A)
    assert agent.hear("w", Vow(ballot, FAST, theirs)) == [
        (None, Ask(ballot, theirs)),
        ("w", Ask(ballot, theirs)),
    ]


def test_one_that_refuses_may_have_gone_on_with_a_witness_that_does_not_answer() -> None:
    agent, ballot = Agent("b", record=PAIR), (1, "b")
    agent.silent.add("a")
    agent.propose(after(PAIR, B))
    assert agent.record == PAIR, "the witness has not said yet"
    agent.hear("w", Vow(ballot))
    agent.hear("w", Accepted(ballot))
    assert agent.record == after(PAIR, B)


def test_one_that_has_ended_says_so_itself() -> None:
    """The witness proposes nothing, so only that one could have left this one behind."""
    agent = Agent("b", record=PAIR)
    agent.bury("a")
    agent.propose(after(PAIR, B))
    assert agent.record == after(PAIR, B), "at once"


def test_of_three_two_go_on_whatever_the_witness_does() -> None:
    agent, ballot = Agent("b", record=replace(FIRST, witness="w")), (1, "b")
    agent.silent |= {"a", "w"}
    agent.propose(after(agent.record, B, C))
    agent.hear("c", Vow(ballot))
    agent.hear("c", Accepted(ballot))
    assert agent.record == after(replace(FIRST, witness="w"), B, C)


def test_a_job_that_is_begun_anew_has_no_witness_yet() -> None:
    agent = Agent("d", record=PAIR)
    agent.begin(after(PAIR, D))
    assert agent.record.witness == ""


def test_a_witness_that_has_left_a_job_does_not_come_back_to_vote_there() -> None:
    agent = Agent("w", record=PAIR)
    agent.replica.read(of_job("c@1", sealed(C)))
    assert agent.compare("a", PAIR) == []
