"""The ranks of the next iteration: their numbers, which of them are active, and which leave.

An assignment is a pure function of the whole table of ranks. It runs on one rank for all, so it needs no communication,
and it must not ask its own process for anything (`seat.hostname`, not `socket.gethostname()`).

`settle` runs an assignment and checks its result. Every rank begins as active, even the last iteration's reserves, so
that they can take the places of lost ranks; filters then take some away.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields, replace

from softrun.runtime.inprocess.callables.arguments import check_callable, check_count
from softrun.runtime.inprocess.callables.compose import name_of


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


class RankAssignment(ABC):
    """Returns the table with its changes. Discarded seats stay in the tuple, whose order has no meaning."""

    @abstractmethod
    def __call__(self, seats: Seats) -> Seats: ...


RankFilter = RankAssignment
"""The guide's older name for assignments that choose the active ranks."""


@dataclass(frozen=True)
class ActivateAllRanks(RankAssignment):
    """Makes every rank active."""

    def __call__(self, seats: Seats) -> Seats:
        return tuple(replace(seat, active=not seat.discarded) for seat in seats)


@dataclass(frozen=True)
class ShiftRanks(RankAssignment):
    """Closes the gaps: survivors first, in their order, then newcomers, so that rank 0 is a survivor.

    0 . 2 3 . . 6 7  ->  0 2 3 6 7
    """

    def __call__(self, seats: Seats) -> Seats:
        return _numbered(enumerate(_survivors_first(seats)), seats)


@dataclass(frozen=True)
class FillGaps(RankAssignment):
    """Moves as few ranks as possible: survivors whose rank is below the new world size keep it; the others fill the
    gaps in order, survivors before newcomers.

    0 . 2 3 . . 6 7  ->  0 6 2 3 7

    If rank 0 was lost and no survivor has to move, the lowest one does, so that rank 0 is a survivor.
    """

    def __call__(self, seats: Seats) -> Seats:
        order = _survivors_first(seats)
        kept = {seat.rank: seat for seat in order if not seat.newcomer and seat.rank < len(order)}
        moved = [seat for seat in order if kept.get(seat.rank) is not seat]
        if kept and 0 not in kept and moved[0].newcomer:
            moved.insert(0, kept.pop(min(kept)))
        gaps = (rank for rank in range(len(order)) if rank not in kept)
        return _numbered([*kept.items(), *zip(gaps, moved, strict=True)], seats)


@dataclass(frozen=True)
class FilterCountGroupedByKey(RankAssignment):
    """Discards every group of ranks for whose size `condition(size)` is false.

    The key is the name of a Seat's attribute, or a function of a Seat. Newcomers count as well: a replaced rank is
    healthy. List ShiftRanks or FillGaps before it in a Compose, to close the gaps that it makes.
    """

    key_or_fn: str | Callable[[Seat], Hashable]
    condition: Callable[[int], bool]

    def __post_init__(self) -> None:
        names = [field.name for field in fields(Seat)]
        if isinstance(self.key_or_fn, str):
            if self.key_or_fn not in names:
                raise ValueError(
                    f"FilterCountGroupedByKey: key_or_fn is {self.key_or_fn!r}; "
                    f"pass one of {', '.join(names)}, or a function of a Seat"
                )
        else:
            wanted = "the name of an attribute of Seat or a function of a Seat"
            check_callable("FilterCountGroupedByKey: key_or_fn", self.key_or_fn, wanted)
        wanted = "a function of a group's size, like lambda count: count == 8"
        check_callable("FilterCountGroupedByKey: condition", self.condition, wanted)

    def __call__(self, seats: Seats) -> Seats:
        keys = [None if seat.discarded else (self._key(seat),) for seat in seats]
        kept = {key for key, count in Counter(keys).items() if key is not None and self.condition(count)}
        return tuple(seat if key in kept else _discard(seat) for seat, key in zip(seats, keys, strict=True))

    def _key(self, seat: Seat) -> Hashable:
        key: Hashable = getattr(seat, self.key_or_fn) if isinstance(self.key_or_fn, str) else self.key_or_fn(seat)
        return key


@dataclass(frozen=True)
class MaxActiveWorldSize(RankAssignment):
    """Makes at most so many ranks active, the lowest ones (None: no limit); the others are reserves."""

    max_active_world_size: int | None = None

    def __post_init__(self) -> None:
        if self.max_active_world_size is not None:
            check_count("MaxActiveWorldSize: max_active_world_size", self.max_active_world_size, 1)

    def __call__(self, seats: Seats) -> Seats:
        return seats if self.max_active_world_size is None else _leave_active(seats, self.max_active_world_size)


@dataclass(frozen=True)
class ActiveWorldSizeDivisibleBy(RankAssignment):
    """Makes the largest possible multiple of ranks active; the ranks above it are reserves."""

    divisor: int = 1

    def __post_init__(self) -> None:
        check_count("ActiveWorldSizeDivisibleBy: divisor", self.divisor, 1)

    def __call__(self, seats: Seats) -> Seats:
        active = len(_active(seats))
        return _leave_active(seats, active - active % self.divisor)


def settle(assignment: Callable[[Seats], Seats | None], seats: Seats) -> Seats:
    """The table of the next iteration: in rank order, so that `settled[rank].rank == rank`, then the discarded seats.

    It may have no active rank: all then wait for others. Raises ValueError with one line if the result cannot be used.
    """
    given = tuple(replace(seat, active=not seat.discarded) for seat in seats)
    returned = assignment(given)
    result = given if returned is None else returned
    trouble = _trouble(given, result)
    if trouble:
        raise ValueError(f"rank assignment {name_of(assignment)}: {trouble}")
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
            return f"{fault}, among {len(staying)} ranks; list ShiftRanks() or FillGaps() before what discards ranks"
    if not staying:
        return f"it discards all of {len(after)} ranks; loosen its condition"
    active = [seat.rank for seat in staying if seat.active]
    if active and active[-1] != len(active) - 1:
        reserve = next(seat.rank for seat in staying if not seat.active)
        fault = f"rank {reserve} is a reserve but rank {active[-1]} is active"
        return f"{fault}; list what limits the size before ShiftRanks() or FillGaps()"
    return ""


def _process(seat: Seat) -> tuple[object, ...]:
    """The fields that an assignment must not change."""
    return seat.initial_rank, seat.node, seat.local_rank, seat.hostname, seat.newcomer


def _survivors_first(seats: Seats) -> list[Seat]:
    return sorted((seat for seat in seats if not seat.discarded), key=lambda seat: (seat.newcomer, seat.rank))


def _numbered(ranks: Iterable[tuple[int, Seat]], seats: Seats) -> Seats:
    return (*(replace(seat, rank=rank) for rank, seat in ranks), *(seat for seat in seats if seat.discarded))


def _active(seats: Seats) -> list[Seat]:
    return sorted((seat for seat in seats if seat.active and not seat.discarded), key=lambda seat: seat.rank)


def _leave_active(seats: Seats, count: int) -> Seats:
    reserves = set(_active(seats)[count:])
    return tuple(replace(seat, active=False) if seat in reserves else seat for seat in seats)


def _discard(seat: Seat) -> Seat:
    return replace(seat, discarded=True, active=False)
