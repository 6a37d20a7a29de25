"""The ranks of an iteration: every process hands in its seat, the first settles the table, and all read it.

So an assignment is a plain function of the whole table, and it costs each rank two messages.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass

from softrun.runtime.events import WorkerInfo
from softrun.runtime.inprocess.callables.rank_assignment import Seat, Seats, settle
from softrun.runtime.inprocess.world_store import WorldStore

Assignment = Callable[[Seats], Seats | None]


class AssignmentError(ValueError):
    """The rank assignment has raised, or its result cannot be used. Every rank raises this, with the same text."""


@dataclass(frozen=True)
class Place:
    """A rank's place in the last iteration."""

    round: int
    rank: int
    world_size: int
    initial_rank: int


def take_seat(
    assignment: Assignment, world_store: WorldStore, name: str, info: WorkerInfo, before: Place | None
) -> tuple[Seat, Seats]:
    """This rank's seat, and all seats. Raises AssignmentError if the assignment cannot be used."""
    claim = {"node": info.group_rank, "local_rank": info.local_rank, "hostname": socket.gethostname()}
    world_store.set(f"{name}/claim/{info.rank}", json.dumps(claim | {"before": before and asdict(before)}).encode())
    if info.rank == 0:
        claims = world_store.gather([f"{name}/claim/{rank}" for rank in range(info.world_size)])
        world_store.set(f"{name}/table", _settled(assignment, [json.loads(claim) for claim in claims]))
    table = json.loads(world_store.wait_for(f"{name}/table"))
    if isinstance(table, str):
        raise AssignmentError(table)
    seats = tuple(Seat(**seat) for _, seat in table)
    own = next(Seat(**seat) for rank, seat in table if rank == info.rank)
    return own, tuple(seat for seat in seats if not seat.discarded)


def _settled(assignment: Assignment, claims: list[dict[str, object]]) -> bytes:
    """The table as JSON: each rank in the world with its seat, or the text of an error."""
    places = [Place(**claim.pop("before")) if claim["before"] else None for claim in claims]  # type: ignore[arg-type]
    last = max((place.round for place in places if place is not None), default=None)
    survivors = {rank: place for rank, place in enumerate(places) if place is not None and place.round == last}
    size = max((place.world_size for place in survivors.values()), default=0)
    lost = iter(sorted(set(range(size)) - {place.rank for place in survivors.values()}))
    seats: dict[int, Seat] = {}
    above = size
    for rank, claim in enumerate(claims):
        claim.pop("before", None)
        if (place := survivors.get(rank)) is not None:
            taken = place.rank
        else:
            taken = next(lost, above)
            above += taken == above
        known = places[rank]
        initial = taken if known is None else known.initial_rank
        newcomer = bool(survivors) and rank not in survivors
        seats[rank] = Seat(rank=taken, newcomer=newcomer, initial_rank=initial, **claim)  # type: ignore[arg-type]
    try:
        settled = settle(assignment, tuple(seats.values()))
    except Exception as error:  # whatever the user's assignment raises, all ranks raise it
        return json.dumps(f"{type(error).__name__}: {error}").encode()
    who = {_process(seat): rank for rank, seat in seats.items()}
    return json.dumps([(who[_process(seat)], asdict(seat)) for seat in settled]).encode()


def _process(seat: Seat) -> tuple[int, int]:
    return seat.node, seat.local_rank
