"""Assignments that choose the active ranks: the lowest ones. The others are reserves, which wait idle and warm."""

from __future__ import annotations

from dataclasses import dataclass, replace

from softrun.runtime.inprocess.calls.arguments import check_count
from softrun.runtime.inprocess.rank_assignment.context import RankAssignmentCtx, RankFilter
from softrun.runtime.inprocess.state import Mode, State


@dataclass(frozen=True)
class ActivateAllRanks(RankFilter):
    """Makes every rank active."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        return _activate(ctx, ctx.state.world_size)


@dataclass(frozen=True)
class MaxActiveWorldSize(RankFilter):
    """Makes at most so many ranks active (None: no limit)."""

    max_active_world_size: int | None = None

    def __post_init__(self) -> None:
        if self.max_active_world_size is not None:
            check_count("MaxActiveWorldSize: max_active_world_size", self.max_active_world_size, 1)

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        most = self.max_active_world_size
        return _activate(ctx, _active(ctx.state) if most is None else min(_active(ctx.state), most))


@dataclass(frozen=True)
class ActiveWorldSizeDivisibleBy(RankFilter):
    """Makes the largest possible multiple of ranks active."""

    divisor: int = 1

    def __post_init__(self) -> None:
        check_count("ActiveWorldSizeDivisibleBy: divisor", self.divisor, 1)

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        active = _active(ctx.state)
        return _activate(ctx, active - active % self.divisor)


def _active(state: State) -> int:
    return state.world_size if state.active_world_size is None else min(state.active_world_size, state.world_size)


def _activate(ctx: RankAssignmentCtx, size: int) -> RankAssignmentCtx:
    rank = ctx.state.rank
    active = rank is not None and rank < size
    ctx.state = replace(
        ctx.state,
        mode=Mode.ACTIVE if active else Mode.INACTIVE,
        active_rank=rank if active else None,
        active_world_size=size,
    )
    return ctx
