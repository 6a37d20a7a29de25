"""Who has which rank, who is a reserve, who has to leave. Quotes are of NVIDIA's usage guide to in-process restart."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softrun.runtime.inprocess import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    Compose,
    FillGaps,
    FilterCountGroupedByKey,
    MaxActiveWorldSize,
    RankAssignment,
    RankFilter,
    Seat,
    ShiftRanks,
    settle,
)

Table = tuple[Seat, ...]

# Tables of ranks. `initial_rank` stands for the process: survivors have that of their rank, newcomers 100 and more.


def seat(rank: int, *, newcomer: bool = False) -> Seat:
    process = 100 + rank if newcomer else rank
    node = rank // 8
    return Seat(
        rank=rank,
        newcomer=newcomer,
        initial_rank=process,
        node=node,
        local_rank=rank % 8,
        hostname=f"host{node}",
    )


def table(size: int, lost: AbstractSet[int] = frozenset(), replaced: AbstractSet[int] = frozenset()) -> Table:
    survivors = [seat(rank) for rank in range(size) if rank not in lost]
    return (*survivors, *(seat(rank, newcomer=True) for rank in sorted(replaced)))


def processes(seats: Table) -> list[int]:
    """Who has rank 0, 1, 2 and so on."""
    staying = sorted((s for s in seats if not s.discarded), key=lambda s: s.rank)
    assert [s.rank for s in staying] == list(range(len(staying)))
    return [s.initial_rank for s in staying]


def active(seats: Table) -> list[int]:
    return sorted(s.rank for s in seats if s.active)


def discarded(seats: Table) -> list[int]:
    return sorted(s.initial_rank for s in seats if s.discarded)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Some ranks were lost; newcomers have been given lost ranks first, then numbers above."""
    size = draw(st.integers(1, 24))
    lost = draw(st.sets(st.integers(0, size - 1)))
    numbers = [*sorted(lost), *range(size, size + 4)]
    count = draw(st.integers(0 if len(lost) < size else 1, len(numbers)))
    seats = table(size, lost, set(numbers[:count]))
    return tuple(draw(st.permutations(seats)))


# Rank assignment


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
    after = settle(rank_assignment, table(24, lost={9}))
    assert processes(after) == [*range(8), *range(16, 24)]
    assert active(after) == list(range(16))
    assert discarded(after) == [8, *range(10, 16)]
    assert [s.initial_rank for s in after[16:]] == [8, *range(10, 16)], (
        "who is discarded stays in the table, at its end"
    )


def test_a_group_whose_lost_rank_was_replaced_is_whole() -> None:
    filtered = Compose(ShiftRanks(), FilterCountGroupedByKey("hostname", lambda count: count == 8))
    assert len(processes(settle(filtered, table(24, lost={9}, replaced={9})))) == 24


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
    after = settle(rank_assignment, table(left + 2, lost={0, 3}))
    assert processes(after) == [1, 2, *range(4, left + 2)]
    assert active(after) == list(range(expected))
    assert not discarded(after)


def test_reserves_are_activated_if_active_ranks_were_terminated() -> None:
    """As the guide says: "in a subsequent restart iteration"."""
    rank_assignment = Compose(MaxActiveWorldSize(4), ShiftRanks())
    first = settle(rank_assignment, table(6))
    assert active(first) == [0, 1, 2, 3]
    second = settle(rank_assignment, tuple(s for s in first if s.rank not in (1, 2)))
    assert processes(second) == [0, 3, 4, 5]
    assert active(second) == [0, 1, 2, 3]


def test_shift_ranks_closes_the_gaps() -> None:
    assert processes(ShiftRanks()(table(8, lost={1, 4, 5}))) == [0, 2, 3, 6, 7]
    assert processes(ShiftRanks()(table(4, lost={0}, replaced={0, 4}))) == [1, 2, 3, 100, 104]


def test_fill_gaps_moves_the_last_into_the_gaps() -> None:
    assert processes(FillGaps()(table(8, lost={1, 4, 5}))) == [0, 6, 2, 3, 7]
    assert processes(FillGaps()(table(8, lost={1, 4, 5}, replaced={1}))) == [0, 6, 2, 3, 7, 101]
    assert processes(FillGaps()(table(8, lost={1, 4, 5}, replaced={1, 4, 5}))) == [0, 101, 2, 3, 104, 105, 6, 7]


def test_fill_gaps_gives_rank_0_to_a_survivor() -> None:
    assert processes(FillGaps()(table(4, lost={0}))) == [3, 1, 2]
    assert processes(FillGaps()(table(4, lost={0}, replaced={0}))) == [1, 100, 2, 3], "the lowest one moves"


@given(tables(), st.sampled_from([ShiftRanks(), FillGaps()]))
def test_every_process_has_a_rank_of_its_own_and_rank_0_is_a_survivor(
    before: Table, assignment: RankAssignment
) -> None:
    after = settle(assignment, before)
    assert sorted(processes(after)) == sorted(s.initial_rank for s in before)
    assert [s.rank for s in after] == list(range(len(before)))
    assert active(after) == list(range(len(before)))
    assert after[0].newcomer == all(s.newcomer for s in before)
    assert settle(assignment, after) == after, "nothing was lost since, so nothing moves"


@given(tables())
def test_survivors_keep_their_order_when_ranks_shift(before: Table) -> None:
    after = ShiftRanks()(before)
    assert [s.newcomer for s in after] == sorted(s.newcomer for s in before)
    survivors = [s.initial_rank for s in after if not s.newcomer]
    assert survivors == sorted(survivors), "a survivor's initial rank is its rank before"


@given(tables())
def test_filling_gaps_keeps_as_many_ranks_as_possible(before: Table) -> None:
    after = FillGaps()(before)
    survivors = [s.rank for s in before if not s.newcomer]
    could_stay = [rank for rank in survivors if rank < len(before)]
    must_give_up_for_rank_0 = bool(survivors) and 0 not in survivors and len(could_stay) == len(survivors)
    stayed = [s for s in after if not s.newcomer and s.rank == s.initial_rank]
    assert len(stayed) == len(could_stay) - must_give_up_for_rank_0


@given(tables(), st.integers(1, 30), st.integers(1, 8), st.sampled_from([ShiftRanks(), FillGaps()]))
def test_active_ranks_come_before_reserves(before: Table, n: int, m: int, ranks: RankAssignment) -> None:
    expected = min(n, len(before)) // m * m
    assignment = Compose(ActiveWorldSizeDivisibleBy(m), MaxActiveWorldSize(n), ranks)
    assert active(settle(assignment, before)) == list(range(expected))  # none, if there are too few


@given(tables(), st.integers(1, 8))
def test_a_group_is_kept_or_discarded_as_a_whole(before: Table, size: int) -> None:
    filtered = FilterCountGroupedByKey("node", lambda count: count >= size)(before)
    for node in {s.node for s in before}:
        group = [s for s in filtered if s.node == node]
        assert {s.discarded for s in group} == {len(group) < size}
    assert FilterCountGroupedByKey("node", lambda count: count >= size)(filtered) == filtered, "discarded is discarded"


def test_who_is_discarded_already_does_not_count() -> None:
    nodes = FilterCountGroupedByKey("node", lambda count: count == 8)
    pairs_of_nodes = FilterCountGroupedByKey(lambda one: one.node // 2, lambda count: count >= 15)
    before = table(32, lost={9})
    assert processes(settle(Compose(ShiftRanks(), pairs_of_nodes), before)) == [*range(9), *range(10, 32)]
    assert processes(settle(Compose(ShiftRanks(), pairs_of_nodes, nodes), before)) == list(range(16, 32))


def test_the_deprecated_name_still_works() -> None:
    assert RankFilter is RankAssignment


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        (ActivateAllRanks(), "nobody has rank 1, among 7 ranks; list ShiftRanks() or FillGaps() before"),
        (
            Compose(FilterCountGroupedByKey("node", lambda count: count > 7), ShiftRanks()),
            "it discards all of 7 ranks; loosen its condition",
        ),
        (
            lambda seats: seats[1:],
            "it left out the process with initial rank 0; set discarded=True if it must leave",
        ),
        (lambda seats: (*seats, seat(9)), "it added or altered the process with initial rank 9"),
        (lambda seats: 7, "it returned a int; return the tuple of all seats, changed by dataclasses.replace"),
        (lambda seats: [replace(s, rank=s.rank // 2) for s in seats], "two have rank 1, among 7 ranks"),
        (
            Compose(lambda seats: [replace(s, active=s.rank != 3) for s in seats], ShiftRanks()),
            "rank 3 is a reserve but rank 6 is active; list what limits the size before ShiftRanks() or FillGaps()",
        ),
    ],
)
def test_an_unusable_table_is_refused_in_one_line(assignment: Callable[[Table], Table], line: str) -> None:
    with pytest.raises(ValueError, match="rank assignment") as refused:
        settle(assignment, table(8, lost={1}))
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_assignment_that_returns_nothing_changes_nothing() -> None:
    assert settle(lambda seats: None, table(3)) == table(3)
