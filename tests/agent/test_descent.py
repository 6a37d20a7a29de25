"""How two records are related: what follows what, what contradicts what, and which of two a quorum went on with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from values import following, known, member, of_job, sealed

from softrun.agent.consensus.descent import IN_RECORD, REMEMBERED, Ancestry, Kin, kin, kin_of, names_before, the_quorum
from softrun.agent.protocol.model import NO_RECORD, RecordId, Round

A, B, C = (member(name) for name in "abc")
FIRST = of_job("a@1", sealed(A, B, C))


def on(record: Round, times: int, **changes: object) -> Round:
    """The record that follows after so many changes, as the agents remember it."""
    for number in range(times):
        after = following(record, number=number, **changes)
        record = replace(after, past=names_before(record))
    return record


def by(node: str, record: Round = FIRST, times: int = 1, proof: bool = False) -> Round:
    """What this node has gone on with, alone."""
    only = following(record, members=(member(node),))
    made = ((only.version, only.name),) if proof else ()
    return on(replace(only, past=names_before(record), by_proof=(*record.by_proof, *made)), times - 1)


@pytest.mark.parametrize("times", [1, 2, IN_RECORD, IN_RECORD + 1, 5 * IN_RECORD])
def test_what_follows_is_newer_however_long_ago_and_what_was_before_is_older(times: int) -> None:
    later = on(FIRST, times)
    assert len(later.past) <= IN_RECORD
    assert kin_of(FIRST, later) is Kin.NEWER
    assert kin_of(later, FIRST) is Kin.OLDER
    assert kin(later, FIRST.id) is Kin.OLDER
    assert kin(FIRST, later.id) is Kin.NEWER, "as far as its name and version tell"


def test_a_record_is_itself() -> None:
    assert kin_of(FIRST, FIRST) is Kin.SAME
    assert kin(FIRST, FIRST.id) is Kin.SAME


@pytest.mark.parametrize(("ours", "theirs"), [(1, 1), (1, 2), (2, 1), (3, 3), (1, IN_RECORD), (IN_RECORD, 1)])
def test_two_that_follow_the_same_one_have_split(ours: int, theirs: int) -> None:
    one, other = by("a", times=ours), by("b", times=theirs)
    assert kin_of(one, other) is Kin.SPLIT
    assert kin_of(other, one) is Kin.SPLIT


def test_of_whom_only_the_name_is_known_it_is_seen_at_an_equal_or_older_version() -> None:
    one = by("a", times=2)
    assert kin(one, by("b", times=2).id) is Kin.SPLIT
    assert kin(one, by("b", times=1).id) is Kin.SPLIT
    assert kin(one, by("b", times=3).id) is Kin.NEWER, "so it is asked for, and then it is seen"


def test_another_job_is_another_job_whatever_its_version() -> None:
    for version in (1, 2, 9):
        assert kin(FIRST, known(version, "b@1")) is Kin.OTHER


def test_who_knows_none_knows_less() -> None:
    assert kin(FIRST, NO_RECORD) is Kin.OLDER


def test_one_that_took_another_name_follows_all_the_same() -> None:
    """Who has missed that goes on with it."""
    renamed = replace(on(FIRST, 2), lineage="a/4", split_from="a@1")
    assert kin_of(FIRST, renamed) is Kin.NEWER
    assert kin_of(renamed, FIRST) is Kin.OLDER
    assert kin_of(renamed, by("b")) is Kin.OTHER
    assert kin_of(by("b"), renamed) is Kin.OTHER


def test_the_quorum_of_two_is_the_one_that_went_on_without_a_proof_of_death() -> None:
    quorum, proved = by("a", times=3), by("b", times=2, proof=True)
    for one, other in ((quorum, proved), (proved, quorum)):
        assert the_quorum(one, other) is quorum


def test_proofs_from_before_they_split_count_for_none() -> None:
    pair = by("a", proof=True)
    quorum, proved = by("a", pair, 2), by("b", pair, proof=True)
    assert quorum.by_proof == pair.by_proof
    assert the_quorum(proved, quorum) is quorum


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (by("a"), by("b")),
        (by("a", proof=True), by("b", proof=True)),
    ],
    ids=["neither by proof", "both"],
)
def test_else_it_is_not_known(one: Round, other: Round) -> None:
    assert the_quorum(one, other) is None
    assert the_quorum(other, one) is None


def test_it_is_known_however_long_they_have_been_two() -> None:
    quorum, proved = by("a", times=99), by("b", times=99, proof=True)
    assert the_quorum(quorum, proved) is quorum


def test_what_a_quorum_made_and_later_one_by_proof_is_the_quorum_still() -> None:
    quorum, proved = by("a", by("a", times=9), proof=True), by("b", times=2, proof=True)
    assert the_quorum(quorum, proved) is quorum


def test_a_record_knows_the_last_proofs_only_and_one_that_it_has_forgotten_is_not_held_against_the_other() -> None:
    proved = by("a", proof=True)
    quorum, other = by("a", proved, 2), proved
    for _ in range(IN_RECORD):
        other = replace(by("b", other, proof=True), by_proof=other.by_proof[-IN_RECORD + 1 :])
        other = replace(other, by_proof=(*other.by_proof, (other.version, other.name)))
    assert proved.by_proof[0] not in other.by_proof
    assert the_quorum(quorum, other) is quorum


# --- what an agent remembers


def test_an_agent_remembers_more_than_a_record() -> None:
    ancestry, record = Ancestry(), FIRST
    ancestry.adopt(record)
    early = by("b")
    for _ in range(5 * IN_RECORD):
        record = on(record, 1)
        ancestry.adopt(record)
    assert kin_of(record, early) is Kin.OLDER, "by its version"
    assert ancestry.kin(early.id) is Kin.SPLIT
    assert ancestry.kin(FIRST.id) is Kin.OLDER
    assert ancestry.kin(on(record, 1).id) is Kin.NEWER
    assert ancestry.kin(known(3, "b@1")) is Kin.OTHER


def test_so_it_does_over_what_it_has_missed_and_forgets_the_job_that_it_has_left() -> None:
    ancestry, later = Ancestry(), on(FIRST, 3 * IN_RECORD)
    ancestry.adopt(FIRST)
    ancestry.adopt(later)
    ancestry.adopt(on(later, 5 * IN_RECORD))
    assert ancestry.kin(by("b", later).id) is Kin.OLDER, "it has not seen the one after that"
    assert ancestry.kin(replace(later, name="?").id) is Kin.SPLIT
    ancestry.adopt(by("b"))
    assert ancestry.kin(later.id) is Kin.NEWER, "as far as its version tells"


def test_it_remembers_no_more_than_it_may() -> None:
    ancestry, record = Ancestry(), FIRST
    for _ in range(REMEMBERED + 9):
        record = on(record, 1)
        ancestry.adopt(record)
    assert len(ancestry._names) == REMEMBERED
    assert ancestry.kin(replace(FIRST, name="?").id) is Kin.OLDER


def test_a_name_alone_tells() -> None:
    assert kin(FIRST, RecordId("?", 99, FIRST.name)) is Kin.SAME
