"""Who heals whom: decided from one row for each rank, which all ranks have, so they need not talk about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST_SOURCES = 8
"""From how many ranks one takes its state at most: more connections are not quicker."""
NOTHING = -1
TORN = -2


class StateLostError(RuntimeError):
    """No rank of this world has a whole state: load a checkpoint, as after a restart of the job."""


class Row(NamedTuple):
    """What one rank says of its state."""

    progress: int
    """Twice the number of its commits, and one more if only the commit is missing; NOTHING, or TORN."""
    has: int
    """The part of the sharded tensors that it holds (`specs.part_of`)."""
    needs: int
    """The part that its place in this world asks for."""
    is_ready: int = 0
    """1 if it has all gradients of its next step, and has not taken it."""


class Plan(NamedTuple):
    """What the ranks of a world do so that all have the same state."""

    newest: int
    """The progress that all shall have; NOTHING if this is the beginning."""
    late: list[int]
    """The ranks that take the step which others have taken (`behind`)."""
    sources: dict[int, tuple[int, ...]]
    """For each rank that lacks the newest state then, those that it takes it from (`sources_for`)."""


def plan_of(rows: Sequence[Row]) -> Plan:
    """Decide. Raises StateLostError."""
    newest, late = newest_of(rows), behind(rows)
    after = [row._replace(progress=newest) if rank in late else row for rank, row in enumerate(rows)]
    return Plan(newest, late, sources_for(after))


def disowned(rows: Sequence[Row], void: Sequence[bool]) -> Sequence[Row]:
    """What a rank has that was left behind is void, unless the others lack a part of it.

    It may have as many commits as they have, and a last one that they have taken otherwise.
    """
    without = [row._replace(progress=TORN, is_ready=0) if left else row for row, left in zip(rows, void, strict=True)]
    try:
        plan_of(without)
    except StateLostError:
        return rows
    return without


def newest_of(rows: Sequence[Row]) -> int:
    """The progress that all ranks shall have; NOTHING if this is the beginning. Raises StateLostError."""
    newest = max(row.progress for row in rows)
    if newest == TORN or (newest == NOTHING and any(row.progress == TORN for row in rows)):
        torn = [rank for rank, row in enumerate(rows) if row.progress == TORN]
        raise StateLostError(
            f"an optimizer's step was interrupted on the ranks {torn}, and no other rank has the state before or after "
            "it: load a checkpoint. Call commit() right after the optimizer's step, before anything that may fail"
        )
    return newest


def behind(rows: Sequence[Row]) -> list[int]:
    """The ranks that have the newest tensors once they have taken the step for which they are ready, or have taken it
    without its commit and hold shards that perhaps nobody else has. Raises StateLostError."""
    newest = newest_of(rows)
    before = newest - 2 + newest % 2
    return [
        rank
        for rank, row in enumerate(rows)
        if (row.is_ready and row.progress == before >= 0) or (row.has and row.progress == before + 1 < newest)
    ]


def sources_for(rows: Sequence[Row]) -> dict[int, tuple[int, ...]]:
    """For each rank that lacks the newest state of its part, the ranks that it takes it from, in turn.

    Raises StateLostError if nobody has what somebody lacks.
    """
    newest = newest_of(rows)
    holders: dict[int, list[int]] = {}
    for rank, row in enumerate(rows):
        if row.progress == newest:
            holders.setdefault(row.has, []).append(rank)
    if newest == NOTHING:  # all have begun: the first rank of each part counts
        holders = {part: ranks[:1] for part, ranks in holders.items()}
    found: dict[int, tuple[int, ...]] = {}
    for rank, row in enumerate(rows):
        ranks = holders.get(row.needs, [])
        if rank in ranks:
            continue
        if not ranks:
            raise StateLostError(
                f"all ranks that had the part of the state that rank {rank} needs are gone: load a checkpoint, or "
                "replicate each shard on two nodes (HSDP)"
            )
        first = len(found) % len(ranks)  # several that are healed begin with different sources
        found[rank] = tuple((ranks[first:] + ranks[:first])[:MOST_SOURCES])
    return found
