"""How many members must have accepted a record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import member, sealed

from softrun.agent.consensus.quorum import is_quorum

FOUR = sealed(*(member(node) for node in "abcd"))
FIVE = sealed(*(member(node) for node in "abcde"))

subset = st.sets(st.sampled_from("abcdefgh"))


@given(st.integers(1, 7), subset, subset)
def test_any_two_share_a_member(size: int, one: set[str], other: set[str]) -> None:
    names = "abcdefgh"[:size]
    round_ = sealed(*(member(name) for name in names))
    if is_quorum(round_, one) and is_quorum(round_, other):
        assert one & other & set(names)


@given(st.integers(1, 7), subset, subset)
def test_more_members_are_no_less_of_a_quorum(size: int, one: set[str], more: set[str]) -> None:
    round_ = sealed(*(member(name) for name in "abcdefgh"[:size]))
    assert is_quorum(round_, one | more) >= is_quorum(round_, one)


@given(st.integers(1, 8), subset)
def test_one_of_two_halves_is_a_quorum(size: int, some: set[str]) -> None:
    """So of a job that is split in two, one part goes on and one waits."""
    names = "abcdefgh"[:size]
    round_ = sealed(*(member(name) for name in names))
    assert is_quorum(round_, some) != is_quorum(round_, set(names) - some)


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


def test_of_nobody_there_is_none() -> None:
    assert not is_quorum(sealed(), set("ab"))
    assert not is_quorum(FOUR, set())
