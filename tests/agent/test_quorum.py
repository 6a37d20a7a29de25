"""How many members must have accepted a record."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import member, sealed

from softrun.agent.consensus.quorum import is_quorum
from softrun.agent.protocol.model import Round

FOUR = sealed(*(member(node) for node in "abcd"))
FIVE = sealed(*(member(node) for node in "abcde"))
FOUR_WITH_ONE = replace(FOUR, witness="w")

subset = st.sets(st.sampled_from("abcdefghw"))
witness = st.sampled_from(["", "w"])


def world(size: int, witness: str, retired: Collection[int] = ()) -> Round:
    gone = tuple(sorted(place for place in retired if place < size))
    return replace(sealed(*(member(name) for name in "abcdefgh"[:size])), witness=witness, finished=gone, retired=gone)


places = st.sets(st.integers(0, 7), max_size=4)


@given(st.integers(1, 7), witness, places, subset, subset)
def test_any_two_share_a_voter(size: int, witness: str, retired: set[int], one: set[str], other: set[str]) -> None:
    round_ = world(size, witness, retired)
    if is_quorum(round_, one) and is_quorum(round_, other):
        assert one & other & {*round_.voters, witness}


@given(st.integers(1, 7), witness, places, subset, subset, subset, subset)
def test_any_two_share_a_voter_also_if_they_do_not_count_the_same_members(
    size: int, witness: str, retired: set[int], one: set[str], other: set[str], ended: set[str], ended_there: set[str]
) -> None:
    """But for what they have read in last words: see the head of the module."""
    round_ = world(size, witness, retired)
    ended, ended_there = ended - {witness}, ended_there - {witness}
    one, other = one - ended - ended_there, other - ended
    if is_quorum(round_, one, ended) and is_quorum(round_, other, ended_there):
        assert one & other & {*round_.voters, witness}


@given(st.integers(1, 7), witness, subset, subset)
def test_more_members_are_no_less_of_a_quorum(size: int, witness: str, one: set[str], more: set[str]) -> None:
    round_ = world(size, witness)
    assert is_quorum(round_, one | more) >= is_quorum(round_, one)


@given(st.integers(1, 8), witness, subset)
def test_one_of_two_halves_is_a_quorum(size: int, witness: str, some: set[str]) -> None:
    """So of a job that is split in two, one part goes on and one waits."""
    round_ = world(size, witness)
    assert is_quorum(round_, some) != is_quorum(round_, {*round_.by_node, witness} - some)


@pytest.mark.parametrize(
    ("nodes", "enough"), [("abc", True), ("ab", False), ("abw", True), ("cdw", True), ("cd", False), ("aw", False)]
)
def test_exactly_half_are_enough_with_the_witness_if_there_is_one(nodes: str, enough: bool) -> None:
    assert is_quorum(FOUR_WITH_ONE, set(nodes)) is enough


@given(st.sampled_from([1, 3, 5, 7]), subset)
def test_of_an_odd_number_the_witness_decides_nothing(size: int, some: set[str]) -> None:
    assert is_quorum(world(size, "w"), some) == is_quorum(world(size, ""), some)


@pytest.mark.parametrize(
    ("nodes", "enough"), [("abc", True), ("bcd", True), ("ab", True), ("ad", True), ("cd", False), ("a", False)]
)
def test_exactly_half_are_enough_with_the_first(nodes: str, enough: bool) -> None:
    assert is_quorum(FOUR, set(nodes)) is enough


def test_of_an_odd_number_more_than_half_are_needed_with_the_first_or_without() -> None:
    assert is_quorum(FIVE, set("cde"))
    assert not is_quorum(FIVE, set("ab"))


def test_who_is_not_a_member_does_not_count() -> None:
    assert not is_quorum(FOUR, set("cdxyz"))


@pytest.mark.parametrize(
    ("ended", "nodes", "enough"),
    [
        ("a", "cd", True),
        ("a", "b", False),
        ("ab", "c", True),
        ("ab", "d", False),
        ("abc", "d", True),
        ("d", "ab", True),
        ("d", "ad", False),
        ("abcd", "abcd", False),
    ],
)
def test_who_has_ended_is_not_counted(ended: str, nodes: str, enough: bool) -> None:
    assert is_quorum(FOUR, set(nodes), set(ended)) is enough


@pytest.mark.parametrize(("nodes", "enough"), [("bc", True), ("bd", True), ("cd", True), ("ab", False), ("ad", False)])
def test_who_is_retired_is_not_counted(nodes: str, enough: bool) -> None:
    assert is_quorum(world(4, "", {0}), set(nodes)) is enough


def test_of_nobody_there_is_none() -> None:
    assert not is_quorum(sealed(), set("ab"))
    assert not is_quorum(FOUR, set())
