"""The ranks of an iteration: every process says who it was, one rank makes the table of all, and all read it.

Then the rank assignment is called: a RankAssignment on every rank, whose results one rank compares for all; a function
of the table on that rank alone. So an iteration costs each rank three messages, or six and those of the assignment.
"""

from __future__ import annotations

import functools
import itertools
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from softrun.runtime.events import WorkerInfo
from softrun.runtime.inprocess.calls.world_store import WorldStore
from softrun.runtime.inprocess.compose import name_of
from softrun.runtime.inprocess.rank_assignment import RankAssignment, RankAssignmentCtx, RankDiscarded, Seat, settle
from softrun.runtime.inprocess.state import Mode, State
from softrun.runtime.inprocess.store import BarrierTimeout, CollectError, IterationStore

Assignment = Callable[[Any], Any]


class AssignmentError(ValueError):
    """The rank assignment has raised, or its result cannot be used. Every rank raises this, with the same text."""


@dataclass(frozen=True)
class Place:
    """A rank's place in the last iteration."""

    round: int
    rank: int
    world_size: int
    initial_rank: int


@dataclass(frozen=True)
class Seated:
    """What an assignment says of one rank."""

    rank: int
    world_size: int
    active_rank: int | None
    active_world_size: int
    initial_rank: int
    discarded: bool = False


def take_seat(
    assignment: Assignment, world_store: WorldStore, name: str, info: WorkerInfo, before: Place | None, state: State
) -> Seated:
    """This rank's seat. Raises AssignmentError if the assignment cannot be used."""
    ranks = range(info.world_size)
    collect = functools.partial(world_store.keys(f"{name}/seats/").collect, info.rank, ranks)
    claim = {"node": info.group_rank, "local_rank": info.local_rank, "hostname": socket.gethostname()}
    by_table = not isinstance(assignment, RankAssignment)

    def table(claims: list[dict[str, Any]]) -> Any:
        size, seats = seats_after(claims)
        return _settled(assignment, seats) if by_table else (size, [asdict(seat) for seat in seats])

    try:
        made = collect(lambda: claim | {"before": before and asdict(before)}, table)
        if by_table:
            return Seated(**made[info.rank])
        size, told = made
        seats = [Seat(**seat) for seat in told]
        ctx = _context(world_store.keys(f"{name}/assignment/"), size, seats, info.rank, state)
        return _agreed(assignment, ctx, seats[info.rank], collect)
    except (CollectError, BarrierTimeout) as error:
        raise AssignmentError(f"rank assignment {name_of(assignment)}: {error}") from None


def seats_after(claims: Sequence[dict[str, Any]]) -> tuple[int, list[Seat]]:
    """The size of the last world with its newcomers, and the seats by agents' rank, numbered as in that world.

    No two of them have the same initial rank.
    """
    places = [Place(**claim.pop("before")) if claim["before"] else None for claim in claims]
    last = max((place.round for place in places if place is not None), default=None)
    survivors = {rank: place for rank, place in enumerate(places) if place is not None and place.round == last}
    size = max((place.world_size for place in survivors.values()), default=0)
    lost = iter(sorted(set(range(size)) - {place.rank for place in survivors.values()}))
    initial_ranks = {place.initial_rank for place in places if place is not None}
    unclaimed = (rank for rank in itertools.count() if rank not in initial_ranks)
    seats = []
    for rank, claim in enumerate(claims):
        claim.pop("before", None)
        if (place := survivors.get(rank)) is not None:
            taken = place.rank
        else:
            taken = next(lost, size)
            size += taken == size
        known = places[rank]
        initial = next(unclaimed) if known is None else known.initial_rank
        newcomer = bool(survivors) and rank not in survivors
        seats.append(Seat(rank=taken, newcomer=newcomer, initial_rank=initial, **claim))
    return size, seats


def _settled(assignment: Assignment, seats: Sequence[Seat]) -> list[dict[str, Any]]:
    """By agents' rank."""
    after = settle(assignment, tuple(seats))
    staying = [seat for seat in after if not seat.discarded]
    active = sum(seat.active for seat in staying)
    found = {
        _process(seat): Seated(
            rank=seat.rank,
            world_size=len(staying),
            active_rank=seat.rank if seat.active else None,
            active_world_size=active,
            initial_rank=seat.initial_rank,
            discarded=seat.discarded,
        )
        for seat in after
    }
    return [asdict(found[_process(seat)]) for seat in seats]


def _process(seat: Seat) -> tuple[int, int]:
    return seat.node, seat.local_rank


def _context(store: IterationStore, size: int, seats: Sequence[Seat], rank: int, state: State) -> RankAssignmentCtx:
    own = seats[rank]
    given = replace(
        state,
        rank=own.rank,
        world_size=size,
        active_rank=None,
        active_world_size=None,
        initial_rank=own.initial_rank,
        mode=Mode.INITIALIZED,
    )
    return RankAssignmentCtx(
        given,
        store,
        terminated_ranks=set(range(size)) - {seat.rank for seat in seats},
        newcomers={seat.rank for seat in seats if seat.newcomer},
    )


def _agreed(assignment: Assignment, ctx: RankAssignmentCtx, own: Seat, collect: Callable[..., Any]) -> Seated:
    """What the assignment says of this rank, once that fits what it says of the others."""
    seated = Seated(own.rank, 0, None, 0, own.initial_rank, discarded=True)

    def assign() -> dict[str, Any]:
        nonlocal seated
        with suppress(RankDiscarded):
            returned: RankAssignmentCtx | None = assignment(ctx)
            seated = _seated((ctx if returned is None else returned).state, own)
        return asdict(seated)

    collect(assign, _check)
    return seated


def _seated(after: State, own: Seat) -> Seated:
    if after.mode is Mode.TERMINATED or after.rank is None:
        return Seated(own.rank, 0, None, 0, own.initial_rank, discarded=True)
    active = after.mode is not Mode.INACTIVE
    rank = after.rank if after.active_rank is None else after.active_rank
    size = after.world_size if after.active_world_size is None else after.active_world_size
    return Seated(after.rank, after.world_size, rank if active else None, size, own.initial_rank)


def _check(outcomes: Sequence[dict[str, Any]]) -> None:
    """Raises ValueError with one line if the ranks' results do not fit together."""
    staying = [seat for outcome in outcomes if not (seat := Seated(**outcome)).discarded]
    if not staying:
        raise ValueError(f"it discards all of {len(outcomes)} ranks; loosen its condition")
    for what in ("world_size", "active_world_size"):
        _check_equal(what, staying)
    _check_numbers("rank", [seat.rank for seat in staying], staying[0].world_size)
    active = [seat.active_rank for seat in staying if seat.active_rank is not None]
    _check_numbers("active rank", active, staying[0].active_world_size)


def _check_equal(what: str, seats: Sequence[Seated]) -> None:
    first = seats[0]
    for other in seats:
        if getattr(other, what) != getattr(first, what):
            raise ValueError(
                f"{what} is {getattr(first, what)} on the rank with initial rank {first.initial_rank} "
                f"and {getattr(other, what)} on that with {other.initial_rank}; it must be the same on all"
            )


def _check_numbers(what: str, numbers: Sequence[int], size: int) -> None:
    """Raises ValueError unless they are 0 to size - 1."""
    number, count = Counter(numbers).most_common(1)[0] if numbers else (0, 1)
    if count > 1:
        raise ValueError(f"{count} ranks have {what} {number}, among {len(numbers)}; number them from 0")
    missing = next((number for number in range(size) if number not in set(numbers)), None)
    if missing is not None:
        raise ValueError(
            f"nobody has {what} {missing}, among {size}; list ShiftRanks() or FillGaps() before what discards "
            "ranks, and after what limits the active ones"
        )
    if len(numbers) != size:
        raise ValueError(f"{len(numbers)} have a {what}, among {size}; number them from 0")
