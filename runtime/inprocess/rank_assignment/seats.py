"""Rank assignments by the whole table: a plain function of all seats, instead of a RankAssignment.

It runs on one rank for all, so it needs no communication, and it must not ask its own process for anything
(`seat.hostname`, not `socket.gethostname()`).

`settle` runs an assignment and checks its result. Every rank begins as active, even the last iteration's reserves, so
that they can take the places of lost ranks; filters then take some away.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Seat:
    """One process, and its place in an iteration."""

    rank: int
    """Before the assignment: survivors have their last rank, with gaps for lost ranks; newcomers have been given lost
    ranks first, then numbers above. After it: this rank's number; meaningless if it is discarded."""
    newcomer: bool
    """Its process was not in the last iteration, so it has no state."""
    active: bool = True
    """False: it is a reserve, which waits idle and warm."""
    discarded: bool = False
    """It must leave the job."""
    initial_rank: int
    node: int
    """The rank of its node."""
    local_rank: int
    hostname: str


Seats = tuple[Seat, ...]


class SeatAssignment(ABC):
    """Returns the table with its changes. Discarded seats stay in the tuple, whose order has no meaning."""

    @abstractmethod
    def __call__(self, seats: Seats) -> Seats: ...


def settle(assignment: Callable[[Seats], Seats | None], seats: Seats) -> Seats:
    """The table of the next iteration: in rank order, so that `settled[rank].rank == rank`, then the discarded seats.

    It may have no active rank: all then wait for others. Raises ValueError with one line if the result cannot be used.
    """
    given = tuple(replace(seat, active=not seat.discarded) for seat in seats)
    returned = assignment(given)
    result = given if returned is None else returned
    trouble = _trouble(given, result)
    if trouble:
        raise ValueError(trouble)
    staying = sorted((seat for seat in result if not seat.discarded), key=lambda seat: seat.rank)
    return (*staying, *(_discard(seat) for seat in result if seat.discarded))


def _trouble(before: Seats, after: object) -> str:
    """Why this table cannot be used, and what to change; empty if it can."""
    if not isinstance(after, (tuple, list)) or not all(isinstance(seat, Seat) for seat in after):
        return f"it returned a {type(after).__name__}; return the tuple of all seats, changed by dataclasses.replace"
    changed = Counter(map(_process, before))
    changed.subtract(Counter(map(_process, after)))
    for (initial_rank, *_), excess in changed.items():
        if excess:
            fault = "left out" if excess > 0 else "added or altered"
            return f"it {fault} the process with initial rank {initial_rank}; set discarded=True if it must leave"
    staying = sorted((seat for seat in after if not seat.discarded), key=lambda seat: seat.rank)
    for rank, seat in enumerate(staying):
        if seat.rank != rank:
            fault = f"two have rank {seat.rank}" if seat.rank == rank - 1 else f"nobody has rank {rank}"
            return f"{fault}, among {len(staying)} ranks; number them from 0"
    if not staying:
        return f"it discards all of {len(after)} ranks; loosen its condition"
    active = [seat.rank for seat in staying if seat.active]
    if active and active[-1] != len(active) - 1:
        reserve = next(seat.rank for seat in staying if not seat.active)
        fault = f"rank {reserve} is a reserve but rank {active[-1]} is active"
        return f"{fault}; let the lowest ranks be active"
    return ""


def _process(seat: Seat) -> tuple[object, ...]:
    """The fields that an assignment must not change."""
    return seat.initial_rank, seat.node, seat.local_rank, seat.hostname, seat.newcomer


def _discard(seat: Seat) -> Seat:
    return replace(seat, discarded=True, active=False)
