"""A record is what it differs in from the one before, and is whole again where that one is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import following, member, of_job, sealed

from softrun.agent.consensus.change import NEW, changed, difference
from softrun.agent.protocol.codec import encode_message
from softrun.agent.protocol.model import Accept, Change, Member, Round

NODES = [member(f"n{number}") for number in range(8)]
places = st.lists(st.sampled_from(range(8)), min_size=1, max_size=8, unique=True)


def world(members: list[Member], number: int = 1) -> Round:
    return of_job("a@1", sealed(*members, number=number))


@given(places, places, st.sets(st.integers(0, 7)))
def test_it_is_whole_again_whoever_comes_goes_and_comes_again(
    before: list[int], after: list[int], reborn: set[int]
) -> None:
    one = world([NODES[place] for place in before])
    members = [replace(NODES[place], incarnation=2) if place in reborn else NODES[place] for place in after]
    two = following(one, number=2, members=tuple(members), lost=("x",))
    change = difference(one, two)
    whole = changed(one, change)
    assert whole is not None
    assert (whole, whole.name, whole.past) == (two, two.name, two.past)
    assert len(change.round.members) == sum(m not in one.members for m in members), "no member is said that is known"


def test_of_many_that_lose_one_the_change_is_small() -> None:
    many = [replace(member(f"node-{number}"), host=f"host-{number}") for number in range(1000)]
    one = world(many)
    change = difference(one, following(one, members=tuple(many[:400] + many[401:]), lost=("node-400",)))
    assert change.members == ((0, 400), (401, 599))
    assert change.round.members == ()
    assert len(encode_message(Accept((0, "a"), change, one.id))) < 2000


FIRST = world(NODES[:3])
SECOND = following(FIRST, members=tuple(NODES[:2]))


@pytest.mark.parametrize(
    "members",
    [
        ((0, 4),),
        ((2, 2),),
        ((-2, 1),),
        ((0, 0),),
        ((0, -1),),
        ((0, 2), (1, 1)),
        ((0, 1 << 62),),
        ((NEW, 1),),
        ((NEW, 1 << 62),),
        ((NEW, 1 << 70), (0, -(1 << 70))),
        ((1 << 70, 1),),
        ((0, 1),) * 1000,
        (),
    ],
    ids=str,
)
def test_what_is_no_change_of_the_record_is_none(members: tuple[tuple[int, int], ...]) -> None:
    assert changed(FIRST, Change(replace(SECOND, members=()), members)) is None


@given(st.lists(st.tuples(st.integers(), st.integers()), max_size=3).map(tuple))
def test_whatever_numbers_are_sent_it_is_none_or_a_record(members: tuple[tuple[int, int], ...]) -> None:
    after = changed(FIRST, Change(replace(SECOND, members=()), members))
    assert after is None or {*after.members} <= {*FIRST.members}


def test_nor_is_one_that_leaves_some_of_its_members_out() -> None:
    assert changed(FIRST, Change(replace(SECOND, members=(NODES[5],)), ((0, 2),))) is None
    assert changed(FIRST, Change(replace(SECOND, members=(NODES[0],)), ((0, 2), (NEW, 1)))) is None, "it is there twice"
