"""Assignments that close the gaps of lost ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from softrun.runtime.inprocess.rank_assignment.context import RankAssignment, RankAssignmentCtx, RankDiscarded


@dataclass(frozen=True)
class ShiftRanks(RankAssignment):
    """Closes the gaps: survivors first, in their order, then newcomers, so that rank 0 is a survivor.

    0 . 2 3 . . 6 7  ->  0 2 3 6 7
    """

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        return _renumbered(ctx, {rank: number for number, rank in enumerate(_survivors_first(ctx))})


@dataclass(frozen=True)
class FillGaps(RankAssignment):
    """Moves as few ranks as possible: survivors whose rank is below the new world size keep it; the others fill the
    gaps in order, survivors before newcomers.

    0 . 2 3 . . 6 7  ->  0 6 2 3 7

    If rank 0 was lost and no survivor has to move, the lowest one does, so that rank 0 is a survivor.
    """

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        order = _survivors_first(ctx)
        kept = {rank for rank in order if rank not in ctx.newcomers and rank < len(order)}
        moved = [rank for rank in order if rank not in kept]
        if kept and 0 not in kept and moved[0] in ctx.newcomers:
            moved.insert(0, min(kept))
            kept.remove(moved[0])
        gaps = [rank for rank in range(len(order)) if rank not in kept]
        return _renumbered(ctx, {rank: rank for rank in kept} | dict(zip(moved, gaps, strict=True)))


def _survivors_first(ctx: RankAssignmentCtx) -> list[int]:
    return sorted(ctx.living, key=lambda rank: (rank in ctx.newcomers, rank))


def _renumbered(ctx: RankAssignmentCtx, numbers: Mapping[int, int]) -> RankAssignmentCtx:
    rank = ctx.state.rank
    if rank is None or rank not in numbers:
        raise RankDiscarded(f"rank {rank} leaves: the rank assignment discards it")
    ctx.state = replace(ctx.state, rank=numbers[rank], world_size=len(numbers))
    ctx.newcomers = {numbers[each] for each in ctx.newcomers if each in numbers}
    ctx.terminated_ranks = set()
    return ctx
