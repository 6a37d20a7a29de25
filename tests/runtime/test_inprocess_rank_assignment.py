"""Who has which rank, who is a reserve, who has to leave. Quotes are of NVIDIA's usage guide to in-process restart."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from assigning import Ranks, Table, assign, table
from hypothesis import given
from hypothesis import strategies as st

from softrun.runtime.inprocess import Compose, State
from softrun.runtime.inprocess.rank_assignment import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    FillGaps,
    FilterCountGroupedByKey,
    MaxActiveWorldSize,
    RankAssignment,
    RankAssignmentCtx,
    RankFilter,
    ShiftRanks,
)
from softrun.runtime.inprocess.store import BarrierTimeout


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Some ranks were lost; newcomers have been given lost ranks first, then numbers above."""
    size = draw(st.integers(1, 24))
    lost = draw(st.sets(st.integers(0, size - 1)))
    numbers = [*sorted(lost), *range(size, size + 4)]
    newcomers = numbers[: draw(st.integers(0 if len(lost) < size else 1, len(numbers)))]
    return table(max([size, *(rank + 1 for rank in newcomers)]), lost - set(newcomers), newcomers)


def test_a_group_of_8_with_a_lost_rank_is_terminated_and_the_others_shift_left() -> None:
    """ "If any rank within a group of 8 is unhealthy or terminated, the entire group is terminated. The remaining
    healthy ranks are then reassigned by shifting left to close any gaps, forming a new sequence of consecutive integers
    from 0 up to the updated world size." """
    rank_assignment = Compose(
        ActivateAllRanks(),
        ShiftRanks(),
        FilterCountGroupedByKey(
            key_or_fn=lambda state: state.rank // 8,
            condition=lambda count: count == 8,
        ),
    )
    after = assign(rank_assignment, table(24, lost={9}))
    assert after.order == after.active == [*range(8), *range(16, 24)]
    assert after.discarded == [8, *range(10, 16)]


def test_a_group_whose_lost_rank_was_replaced_is_whole() -> None:
    by_host = FilterCountGroupedByKey(lambda state: f"host{state.rank // 8}", lambda count: count == 8)
    assert len(assign(Compose(ShiftRanks(), by_host), table(24, newcomers={9})).order) == 24


@pytest.mark.parametrize(
    ("m", "n", "left", "expected"), [(4, 10, 16, 8), (4, 12, 16, 12), (4, 100, 15, 12), (1, 2, 9, 2)]
)
def test_the_largest_multiple_of_m_not_greater_than_n_is_active(m: int, n: int, left: int, expected: int) -> None:
    """ "shifts all healthy ranks to the left to fill gaps created by terminated ranks, and then ensures that the active
    world size visible to the wrapped function is the largest multiple of M that is not greater than N. The remaining
    healthy ranks would be inactive and serve as a reserve." """
    rank_assignment = Compose(
        ActiveWorldSizeDivisibleBy(m),
        MaxActiveWorldSize(n),
        ShiftRanks(),
    )
    after = assign(rank_assignment, table(left + 2, lost={0, 3}))
    assert after.order == [1, 2, *range(4, left + 2)]
    assert after.active == after.order[:expected]
    assert not after.discarded


def test_reserves_are_activated_if_active_ranks_were_terminated() -> None:
    """ "reserve ranks would be activated in a subsequent restart iteration"."""
    ranks = Ranks(Compose(MaxActiveWorldSize(4), ShiftRanks()))
    assert ranks.assign(table(6)).active == [0, 1, 2, 3]
    second = ranks.assign(table(6, lost={1, 2}))
    assert second.order == second.active == [0, 3, 4, 5]


def test_shift_ranks_closes_the_gaps() -> None:
    assert assign(ShiftRanks(), table(8, lost={1, 4, 5})).order == [0, 2, 3, 6, 7]
    assert assign(ShiftRanks(), table(5, newcomers={0, 4})).order == [1, 2, 3, 0, 4]


def test_fill_gaps_moves_the_last_into_the_gaps() -> None:
    assert assign(FillGaps(), table(8, lost={1, 4, 5})).order == [0, 6, 2, 3, 7]
    assert assign(FillGaps(), table(8, lost={4, 5}, newcomers={1})).order == [0, 6, 2, 3, 7, 1]
    assert assign(FillGaps(), table(8, newcomers={1, 4, 5})).order == [0, 1, 2, 3, 4, 5, 6, 7]


def test_fill_gaps_gives_rank_0_to_a_survivor() -> None:
    assert assign(FillGaps(), table(4, lost={0})).order == [3, 1, 2]
    assert assign(FillGaps(), table(4, newcomers={0})).order == [1, 0, 2, 3], "the lowest one moves"


@given(tables(), st.sampled_from([ShiftRanks(), FillGaps()]))
def test_every_process_has_a_rank_of_its_own_and_rank_0_is_a_survivor(
    before: Table, assignment: RankAssignment
) -> None:
    order = assign(assignment, before).order
    assert sorted(order) == before.living
    assert not before.survivors or order[0] in before.survivors
    again = assign(assignment, table(len(order)))
    assert again.order == list(range(len(order))), "nothing was lost since, so nothing moves"


@given(tables())
def test_survivors_keep_their_order_when_ranks_shift(before: Table) -> None:
    order = assign(ShiftRanks(), before).order
    assert order == [*before.survivors, *sorted(before.newcomers)]


@given(tables())
def test_filling_gaps_keeps_as_many_ranks_as_possible(before: Table) -> None:
    order = assign(FillGaps(), before).order
    could_stay = [rank for rank in before.survivors if rank < len(order)]
    must_give_up_for_rank_0 = (
        bool(before.survivors) and 0 not in before.survivors and len(could_stay) == len(before.survivors)
    )
    stayed = [rank for rank, process in enumerate(order) if rank == process and process in before.survivors]
    assert len(stayed) == len(could_stay) - must_give_up_for_rank_0


@given(tables(), st.integers(1, 30), st.integers(1, 8), st.sampled_from([ShiftRanks(), FillGaps()]))
def test_active_ranks_come_before_reserves(before: Table, n: int, m: int, ranks: RankAssignment) -> None:
    expected = min(n, len(before.living)) // m * m
    after = assign(Compose(ActiveWorldSizeDivisibleBy(m), MaxActiveWorldSize(n), ranks), before)
    assert after.active == after.order[:expected]  # none, if there are too few


@given(tables(), st.integers(1, 8))
def test_a_group_is_kept_or_discarded_as_a_whole(before: Table, size: int) -> None:
    by_node = FilterCountGroupedByKey(lambda state: state.rank // 8, lambda count: count >= size)
    after = assign(Compose(ShiftRanks(), by_node), before)
    for node in {rank // 8 for rank in before.living}:
        group = {rank for rank in before.living if rank // 8 == node}
        assert group & set(after.discarded) == (group if len(group) < size else set())


def test_who_is_discarded_already_does_not_count() -> None:
    nodes = FilterCountGroupedByKey(lambda state: state.rank // 8, lambda count: count == 8)
    pairs_of_nodes = FilterCountGroupedByKey(lambda state: state.rank // 16, lambda count: count >= 15)
    before = table(32, lost={9})
    assert assign(Compose(ShiftRanks(), pairs_of_nodes), before).order == before.living
    assert assign(Compose(ShiftRanks(), pairs_of_nodes, nodes), before).order == list(range(16, 32))


def test_a_key_may_be_a_field_of_the_state_or_a_text_for_all() -> None:
    alone = FilterCountGroupedByKey("initial_rank", lambda count: count == 1)
    assert assign(Compose(ShiftRanks(), alone), table(3)).order == [0, 1, 2]
    together = FilterCountGroupedByKey("all", lambda count: count == 3)
    assert assign(Compose(ShiftRanks(), together), table(3)).order == [0, 1, 2]
    assert assign(Compose(ShiftRanks(), together), table(4)).discarded == [0, 1, 2, 3]


def test_what_a_key_raises_on_one_rank_is_told_to_all() -> None:
    def key(state: State) -> str:
        if state.rank == 1:
            raise KeyError("no such host")
        return "host"

    raised = Ranks(FilterCountGroupedByKey(key, bool)).attempt(table(3)).values()
    assert [str(error) for error in raised] == ["on rank 1: KeyError: 'no such host'"] * 3


def test_a_rank_that_tells_no_key_is_not_waited_for_longer_than_the_timeout() -> None:
    def key(state: State) -> str:
        time.sleep(2 * (state.rank == 1))
        return "host"

    raised = Ranks(FilterCountGroupedByKey(key, bool, timedelta(seconds=0.2))).attempt(table(3))
    assert isinstance(raised[0], BarrierTimeout)
    line = "not all of 3 ranks have made the same rank assignment: not all ranks arrived within 0.2 s"
    assert str(raised[0]) == str(raised[2]) == line


class ByProcess(RankAssignment):
    """As users write them: it communicates by the context's store, and changes its state in place."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        assert ctx.state.rank is not None
        ranks = sorted(set(range(ctx.state.world_size)) - ctx.terminated_ranks)
        ctx.store.send_state(ctx.state, ctx.state.rank)
        ctx.store.send_key(os.getpid(), ctx.state.rank)
        states = ctx.store.get_states(ranks)
        assert ctx.store.get_keys(ranks) == [os.getpid()] * len(ranks)
        order = sorted(states, key=lambda state: -(state.initial_rank or 0))
        ctx.state.rank = [state.rank for state in order].index(ctx.state.rank)
        ctx.state.world_size = len(order)
        ctx.terminated_ranks = set()
        return ctx


def test_a_rank_assignment_of_a_users_own_is_called_on_every_rank() -> None:
    after = assign(Compose(ActivateAllRanks(), ByProcess()), table(4, lost={1}))
    assert after.order == after.active == [3, 2, 0]


class ByPlace(RankFilter):
    """A filter of a user's own."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        ctx.state = replace(ctx.state, active_rank=ctx.state.rank, active_world_size=ctx.state.world_size)
        return ActiveWorldSizeDivisibleBy(2)(ctx)


def test_a_rank_filter_of_a_users_own_composes_with_the_others() -> None:
    composed = Compose(ByPlace(), ShiftRanks())
    assert isinstance(composed, RankAssignment)
    assert assign(composed, table(6, lost={2})).active == [0, 1, 3, 4]
