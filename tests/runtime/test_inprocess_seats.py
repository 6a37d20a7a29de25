"""Rank assignments by the table of all ranks: a plain function, called on one rank for all."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from softrun.runtime.inprocess import Compose, Seat, SeatAssignment, settle
from softrun.runtime.inprocess.calls.seating import Place, seats_after

Table = tuple[Seat, ...]


def seat(rank: int) -> Seat:
    return Seat(rank=rank, newcomer=False, initial_rank=rank, node=rank // 8, local_rank=rank % 8, hostname="host")


def table(size: int, *lost: int) -> Table:
    return tuple(seat(rank) for rank in range(size) if rank not in lost)


class Shift(SeatAssignment):
    def __call__(self, seats: Table) -> Table:
        staying = [one for one in seats if not one.discarded]
        gone = [one for one in seats if one.discarded]
        return (*(replace(one, rank=rank) for rank, one in enumerate(staying)), *gone)


def without_the_first_node(seats: Table) -> Table:
    return tuple(replace(one, discarded=one.node == 0) for one in seats)


def claim(local_rank: int, before: Place | None) -> dict[str, Any]:
    return {"node": 0, "local_rank": local_rank, "hostname": "host", "before": before and asdict(before)}


def test_a_rank_that_was_not_seated_before_the_first_iteration_ended_has_an_initial_rank_of_its_own() -> None:
    """The two others had been seated, and had changed places, when one of them failed."""
    turned = [None, Place(1, 1, 3, 1), Place(1, 0, 3, 2)]
    size, seats = seats_after([claim(rank, before) for rank, before in enumerate(turned)])
    assert (size, [(one.rank, one.initial_rank) for one in seats]) == (3, [(2, 0), (1, 1), (0, 2)])


def test_discarded_seats_stand_at_the_end_of_the_settled_table() -> None:
    composed = Compose(Shift(), without_the_first_node)
    assert isinstance(composed, SeatAssignment)
    after = settle(composed, table(11, 9))
    assert [(one.rank, one.initial_rank) for one in after[:2]] == [(0, 8), (1, 10)]
    assert [one.initial_rank for one in after[2:]] == list(range(8))
    assert all(one.discarded and not one.active for one in after[2:])


def test_reserves_of_the_last_iteration_begin_as_active() -> None:
    reserves = tuple(replace(one, active=False) for one in table(3))
    assert settle(lambda seats: seats, reserves) == table(3)


def test_an_assignment_that_returns_nothing_changes_nothing() -> None:
    assert settle(lambda seats: None, table(3)) == table(3)


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        (lambda seats: seats, "nobody has rank 1, among 7 ranks; number them from 0"),
        (
            lambda seats: [replace(one, discarded=True) for one in seats],
            "it discards all of 7 ranks; loosen its condition",
        ),
        (
            lambda seats: seats[1:],
            "it left out the process with initial rank 0; set discarded=True if it must leave",
        ),
        (lambda seats: (*seats, seat(9)), "it added or altered the process with initial rank 9"),
        (lambda seats: 7, "it returned a int; return the tuple of all seats, changed by dataclasses.replace"),
        (lambda seats: [replace(one, rank=one.rank // 2) for one in seats], "two have rank 1, among 7 ranks"),
        (
            Compose(Shift(), lambda seats: [replace(one, active=one.rank != 3) for one in seats]),
            "rank 2 is a reserve but rank 6 is active; let the lowest ranks be active",
        ),
    ],
)
def test_an_unusable_table_is_refused_in_one_line(assignment: Callable[[Table], Table], line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)) as refused:
        settle(assignment, table(8, 1))
    assert "\n" not in str(refused.value)
