"""What the step log tells about a fault. Pure: steps in, figures out.

The gap is the same for all systems: from the instant of the fault until every survivor has completed a step of a later
world. A survivor is a process if processes survive, and a place if the launcher starts all again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from local_cluster import Step


def gap(steps: Sequence[Step], at: float, workers: int) -> float | None:
    """Seconds from `at` until every member of a later world, in which at least `workers` are, has completed a step."""
    before = max((s.round for s in steps if s.mono <= at), default=-1)
    return first_of_all([s for s in steps if s.mono > at and s.round > before], at, workers)


def first_of_all(steps: Sequence[Step], at: float, workers: int) -> float | None:
    """As gap, of any world."""
    firsts: dict[tuple[int, int], dict[int, float]] = {}
    for s in steps:
        if s.world_size >= workers:
            firsts.setdefault((s.round, s.world_size), {}).setdefault(s.pid, s.mono)
    complete = [max(members.values()) for (_, size), members in firsts.items() if len(members) >= size]
    return min(complete) - at if complete else None


def around(steps: Sequence[Step], at: float, before_s: float) -> list[Step]:
    """From the end of the world of `at`, not more than `before_s` of it, to the last step."""
    world = max((s.round for s in steps if s.mono <= at), default=-1)
    return [s for s in steps if s.mono > at - before_s and s.round >= world]


def sequences(steps: Sequence[Step], staying: Collection[int]) -> list[list[Step]]:
    """The steps of each survivor in order: of the processes `staying` where all of them step in the last world, else of
    as many first ranks, whatever their processes."""
    last = max(s.round for s in steps)
    kept = set(staying) <= {s.pid for s in steps if s.round == last}
    if kept:
        return [[s for s in steps if s.pid == pid] for pid in sorted(staying)]
    return [[s for s in steps if s.rank == rank] for rank in range(len(staying))]


@dataclass(frozen=True)
class Toll:
    """What a change of the world took from its survivors: of each figure, that of the survivor with the most."""

    kept: int
    """Survivors that kept their process."""
    pause_s: float
    """The longest time between the last step in a world and the first in the next."""
    longest_s: float
    """The longest time between any two steps."""
    repeated: int
    """Steps that were completed twice."""
    lost: int
    """Steps that this survivor never completed although the others went on."""
    broken: int | None
    """Steps that were begun and not completed: their work was thrown away. None where processes were not kept."""


def toll(steps: Sequence[Step], staying: Collection[int]) -> Toll:
    last = max(s.round for s in steps)
    kept = set(staying) & {s.pid for s in steps if s.round == last}
    survivors = sequences(steps, staying)
    return Toll(
        kept=len(kept),
        pause_s=max(longest(sequence, between_worlds=True) for sequence in survivors),
        longest_s=max(longest(sequence) for sequence in survivors),
        repeated=max(repeated(sequence) for sequence in survivors),
        lost=max(lost(sequence) for sequence in survivors),
        broken=max(broken(sequence) for sequence in survivors) if len(kept) == len(staying) else None,
    )


def longest(sequence: Sequence[Step], *, between_worlds: bool = False) -> float:
    return max((b.mono - a.mono for a, b in pairwise(sequence) if not between_worlds or b.round != a.round), default=0)


def repeated(sequence: Sequence[Step]) -> int:
    return sum(max(0, a.step - b.step + 1) for a, b in pairwise(sequence))


def lost(sequence: Sequence[Step]) -> int:
    return sum(max(0, b.step - a.step - 1) for a, b in pairwise(sequence))


def broken(sequence: Sequence[Step]) -> int:
    return (sequence[-1].begun - sequence[0].begun) - (len(sequence) - 1)


def members(steps: Sequence[Step]) -> set[int]:
    """The processes of the last world."""
    last = max((s.round for s in steps), default=0)
    return {s.pid for s in steps if s.round == last}
