from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import STORE, member, opened, sealed

from softrun.agent.protocol.model import Address, Member, Worker
from softrun.agent.rendezvous import ranks
from softrun.runtime.events import WorldChangeEvent

worlds = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(("trainer", "reader"))), min_size=1, max_size=6).map(
    lambda shapes: [member(f"n{i}", workers=size, role=role) for i, (size, role) in enumerate(shapes)]
)


@given(worlds)
def test_ranks_are_dense_and_disjoint(members: list[Member]) -> None:
    world = sealed(*members)
    infos = [info for m in members for info in ranks.places(world, m.life).values()]
    assert [info.rank for info in infos] == list(range(len(infos)))
    assert {info.world_size for info in infos} == {len(infos)}
    for role in {m.role for m in members}:
        same = [info for m in members if m.role == role for info in ranks.places(world, m.life).values()]
        assert [info.role_rank for info in same] == list(range(len(same)))
        assert {info.role_world_size for info in same} == {len(same)}
    for group_rank, m in enumerate(members):
        own = ranks.places(world, m.life).values()
        assert {info.group_rank for info in own} == {group_rank}
        assert {info.local_world_size for info in own} == {len(own)}


@pytest.mark.parametrize(
    ("said", "meet"),
    [
        (None, STORE),
        (Address("named", 0), Address("named", STORE.port)),
        (Address("", 42), Address(STORE.host, 42)),
        (Address("named", 42), Address("named", 42)),
    ],
)
def test_the_first_world_meets_where_the_user_has_said(said: Address | None, meet: Address) -> None:
    for number, place in ((1, meet), (2, STORE)):
        (info,) = ranks.places(sealed(member("a"), number=number), ("a", 1), said).values()
        assert Address(info.master_addr, info.master_port) == place


def test_a_round_that_was_never_sealed_has_no_places() -> None:
    for said in (None, Address("named", 0)):
        with pytest.raises(AssertionError, match="never sealed"):
            ranks.places(opened(member("a")), ("a", 1), said)


def test_who_is_not_in_the_world_has_no_place() -> None:
    with pytest.raises(AssertionError, match="not in round 1"):
        ranks.places(sealed(member("a")), ("a", 2))


@pytest.mark.parametrize(
    ("after", "change"),
    [
        ([member("a"), member("b")], None),
        ([member("a"), member("b"), member("c")], WorldChangeEvent.SCALE_UP),
        ([member("a")], WorldChangeEvent.SCALE_DOWN),
        ([member("a"), member("c")], WorldChangeEvent.SCALE_DOWN),  # a loss is what peers must act on
        ([member("a"), member("b", incarnation=2)], WorldChangeEvent.SCALE_DOWN),
        ([member("a"), member("b", lives=2)], WorldChangeEvent.SCALE_DOWN),
        ([member("b"), member("a")], None),
    ],
)
def test_what_peers_are_told(after: list[Member], change: WorldChangeEvent | None) -> None:
    assert ranks.change(sealed(member("a"), member("b")), sealed(*after, number=2)) is change


def test_survivors_keep_their_order_and_come_first() -> None:
    before = sealed(member("a"), member("b"), member("c"))
    mixed = [member("d"), member("b"), member("a", incarnation=2), member("c")]
    assert [m.node for m in ranks.order(before, mixed)] == ["b", "c", "d", "a"]


def test_nodes_stand_where_they_want_to() -> None:
    a, b, c = (replace(member(node), preferred_rank=place) for node, place in (("a", 2), ("b", 0), ("c", 1)))
    first = ranks.order(sealed(), [a, b, c])
    assert [m.node for m in first] == ["b", "c", "a"]
    again = replace(c, incarnation=2)
    assert ranks.order(sealed(*first), [b, a, again]) == (b, again, a), "who comes back gets its place back"


def test_rank_0_is_a_survivor_whatever_anybody_wants() -> None:
    a, b, c = (replace(member(node), preferred_rank=place) for node, place in (("a", 0), ("b", 1), ("c", 2)))
    again = replace(a, incarnation=2)
    assert ranks.order(sealed(a, b, c), [again, b, c]) == (b, c, again)


def test_within_a_node_survivors_come_first_too() -> None:
    placed = member("a", workers=3)
    reported = Member("a", 1, "host-a", 7000, "trainer", (Worker(0, 2), Worker(1, 1), Worker(2, 1)))
    merged = ranks.merge(placed, reported, done=())
    assert merged.workers == (Worker(1, 1), Worker(2, 1), Worker(0, 2))
    again = ranks.merge(merged, reported, done=(2,))
    assert again.workers == (Worker(1, 1), Worker(0, 2))
    assert ranks.merge(placed, replace(reported, lease_number=7), done=()).lease_number == 7, (
        "the rest is as it was reported"
    )
