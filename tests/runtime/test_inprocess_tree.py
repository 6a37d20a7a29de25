"""The rank assignment by topology: whole branches leave; reserves or the highest ranks take the places of others."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from assigning import Ranks, assign, table
from hypothesis import given
from hypothesis import strategies as st

from softrun.runtime.inprocess import Compose, State
from softrun.runtime.inprocess.rank_assignment import Layer, LayerFlag, Tree

Key = Callable[[State], str]


def nodes_of(size: int) -> Key:
    """By the first rank of a process: its host does not change."""
    return lambda state: f"node{(state.initial_rank or 0) // size}"


def tree(of_node: Layer, most: int | None = None, flag: LayerFlag | None = None) -> Tree:
    return Tree([Layer(max_ranks=most, key_or_fn="job", flag=flag), of_node])


def test_a_node_with_too_few_healthy_ranks_leaves_and_a_reserve_node_takes_its_ranks() -> None:
    """The usual use: four ranks on each node, the last node in reserve."""
    layers = tree(Layer(4, 4, nodes_of(4), LayerFlag.RESERVE), most=8, flag=LayerFlag.RESERVE)
    ranks = Ranks(layers)
    first = ranks.assign(table(12))
    assert first.order == list(range(12))
    assert first.active == list(range(8))
    second = ranks.assign(table(12, lost={1}))
    assert second.discarded == [0, 2, 3]
    assert sorted(second.active[:4]) == [8, 9, 10, 11], "the reserve node's ranks"
    assert second.active[4:] == [4, 5, 6, 7], "nobody else moves"


def test_a_reserve_on_the_same_node_comes_before_one_elsewhere() -> None:
    layers = tree(Layer(1, 3, nodes_of(4), LayerFlag.RESERVE), flag=LayerFlag.RESERVE)
    ranks = Ranks(layers)
    assert ranks.assign(table(8)).active == [0, 1, 2, 4, 5, 6]
    second = ranks.assign(table(8, lost={1}))
    assert second.active == [0, 3, 2, 4, 5, 6]


def test_without_the_flag_a_reserve_is_not_taken_from_elsewhere() -> None:
    """The node has none left, and its branch is not left to look for one: the gap is closed."""
    layers = tree(Layer(1, 3, nodes_of(4), LayerFlag.RESERVE))
    after = Ranks(layers)
    after.assign(table(8))
    assert after.assign(table(8, lost={1, 2, 3})).active == [0, 4, 5, 6]


def test_the_highest_rank_of_the_widest_branch_fills_a_gap() -> None:
    both = LayerFlag.BACKFILL
    everywhere = Ranks(tree(Layer(1, None, nodes_of(4), both), flag=both))
    everywhere.assign(table(8))
    assert everywhere.assign(table(8, lost={1})).active == [0, 7, 2, 3, 4, 5, 6]
    on_the_node = Ranks(tree(Layer(1, None, nodes_of(4), both)))
    on_the_node.assign(table(8))
    assert on_the_node.assign(table(8, lost={1})).active == [0, 3, 2, 4, 5, 6, 7]


def test_gaps_that_nobody_fills_are_closed() -> None:
    ranks = Ranks(tree(Layer(1, None, nodes_of(4))))
    ranks.assign(table(8))
    assert ranks.assign(table(8, lost={1, 4})).active == [0, 2, 3, 5, 6, 7]


def test_a_replacement_takes_the_place_of_the_lost_rank_on_its_node() -> None:
    ranks = Ranks(tree(Layer(4, 4, nodes_of(4), LayerFlag.RESERVE), most=8, flag=LayerFlag.RESERVE))
    ranks.assign(table(12))
    second = ranks.assign(table(12, newcomers={1}))
    assert second.active == list(range(8))
    assert not second.discarded


def test_ranks_that_join_become_active_as_far_as_the_layers_allow() -> None:
    ranks = Ranks(tree(Layer(1, 4, nodes_of(4)), most=6))
    assert ranks.assign(table(4)).active == [0, 1, 2, 3]
    assert ranks.assign(table(8, newcomers={4, 5, 6, 7})).active == [0, 1, 2, 3, 4, 5]


def test_ranks_are_numbered_along_the_tree() -> None:
    """Ranks of a node are next to each other, whatever numbers they came with."""
    odd_and_even: Key = lambda state: f"node{(state.initial_rank or 0) % 2}"  # noqa: E731
    assert assign(tree(Layer(key_or_fn=odd_and_even)), table(6)).order == [0, 2, 4, 1, 3, 5]


def test_a_filter_of_the_world_size_leaves_the_highest_in_reserve() -> None:
    by_three = Tree([Layer(key_or_fn="job")], world_size_filter=lambda count: count // 3 * 3)
    ranks = Ranks(by_three)
    first = ranks.assign(table(8))
    assert first.active == [0, 1, 2, 3, 4, 5]
    assert first.order == list(range(8))
    assert ranks.assign(table(8, lost={0, 1, 2})).active == [3, 4, 5]


def test_layers_may_be_deeper() -> None:
    """Two nodes behind a switch, two ranks on a node: half a switch is no use."""
    layers = Tree(
        [
            Layer(key_or_fn="job", flag=LayerFlag.RESERVE),
            Layer(4, key_or_fn=lambda state: f"switch{(state.initial_rank or 0) // 4}"),
            Layer(2, 2, nodes_of(2)),
        ]
    )
    after = Ranks(layers)
    after.assign(table(12))
    second = after.assign(table(12, lost={5}))
    assert second.discarded == [4, 6, 7]
    assert second.active == [0, 1, 2, 3, 8, 9, 10, 11]


@given(st.data())
def test_all_ranks_agree_through_losses_and_joins(data: st.DataObject) -> None:
    flags = st.sampled_from([None, LayerFlag.RESERVE, LayerFlag.BACKFILL, LayerFlag.RESERVE | LayerFlag.BACKFILL])
    least, most = data.draw(st.integers(1, 3)), data.draw(st.integers(3, 4))
    root_most = data.draw(st.sampled_from([None, 5, 8]))
    layers = tree(Layer(least, most, lambda state: f"node{(state.rank or 0) % 3}", data.draw(flags)), root_most)
    ranks, size = Ranks(layers), data.draw(st.integers(9, 12))
    newcomers: set[int] = set()
    lost: set[int] = set()
    for _ in range(3):
        after = ranks.assign(table(size, lost - newcomers, newcomers))
        if not after.states:
            break  # too few are left on every node
        assert len(after.active) <= (root_most or size)
        size = len(after.order)
        lost = data.draw(st.sets(st.integers(0, size - 1), max_size=max(0, size - 1)))
        newcomers = set(sorted(lost)[: data.draw(st.integers(0, 2))])


def test_the_first_layer_must_have_one_key() -> None:
    with pytest.raises(ValueError, match="Tree: the first layer must give all ranks one key, not 'node0', 'node1'"):
        assign(Tree([Layer(key_or_fn=nodes_of(1))]), table(2))


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Tree([]), "Tree: layers must be a list of one Layer or more"),
        (lambda: Tree(["job"]), "Tree: layers must be a list of one Layer or more"),  # type: ignore[list-item]
        (lambda: Tree([Layer()], 3), "Tree: world_size_filter is 3 (int), which cannot be called; pass a function of"),  # type: ignore[arg-type]
        (lambda: Layer(0), "Layer: min_ranks is 0; pass 1 or more"),
        (lambda: Layer(4, 2), "Layer: max_ranks is 2; pass 4 or more"),
        (lambda: Layer(key_or_fn=3), "Layer: key_or_fn is 3 (int), which cannot be called; pass a text or a"),  # type: ignore[arg-type]
        (lambda: Layer(flag="RESERVE"), "Layer: flag is 'RESERVE' (str); pass a LayerFlag, or None"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_given(make: Callable[[], object], line: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        make()
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_the_filter_of_the_world_size_may_not_make_it_larger() -> None:
    with pytest.raises(ValueError, match=r"Tree: world_size_filter\(2\) is 3; return a number from 0 to 2"):
        assign(Tree([Layer()], lambda count: count + 1), table(2))


def test_a_tree_may_be_the_last_listed_of_a_compose_of_assignments() -> None:
    assert assign(Compose(Tree([Layer()])), table(3)).active == [0, 1, 2]


def seconds_to_replace(ranks: int) -> float:
    """Of processor time, for the rank that moves the leaves, after the loss of one in sixteen; the least of three."""
    least = float("inf")
    for _ in range(3):
        grower = tree(Layer(1, 6, nodes_of(8), LayerFlag.RESERVE), flag=LayerFlag.RESERVE)
        paths = {rank: ("job", f"node{rank // 8}") for rank in range(ranks)}
        grower._leaves = [leaf for _, leaf in grower._grown(paths, set(paths))]
        stay = {rank: path for rank, path in paths.items() if rank % 16}
        began = time.thread_time()
        grower._grown(stay, set())
        least = min(least, time.thread_time() - began)
    return least


def test_a_tree_of_four_times_the_ranks_costs_about_four_times_as_much() -> None:
    assert seconds_to_replace(8192) < 9 * seconds_to_replace(2048)
