"""An assignment that keeps whole groups of ranks, such as those of a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from datetime import timedelta

from softrun.runtime.inprocess.calls.arguments import check_callable, check_duration
from softrun.runtime.inprocess.rank_assignment.context import RankAssignment, RankAssignmentCtx
from softrun.runtime.inprocess.state import State


@dataclass(frozen=True)
class FilterCountGroupedByKey(RankAssignment):
    """Discards every group of ranks for whose size `condition(size)` is false.

    The key is a function of the rank's State, which may ask its own process (`lambda _: socket.gethostname()`), or the
    name of a field of State, or another text, which puts all ranks into one group. Newcomers count as well: a replaced
    rank is healthy. List ShiftRanks or FillGaps before it in a Compose, to close the gaps that it makes. The ranks tell
    each other their keys; BarrierTimeout is raised if one does not within `timeout`.
    """

    key_or_fn: str | Callable[[State], Hashable]
    condition: Callable[[int], bool]
    timeout: timedelta = timedelta(seconds=60)

    def __post_init__(self) -> None:
        if not isinstance(self.key_or_fn, str):
            check_callable("FilterCountGroupedByKey: key_or_fn", self.key_or_fn, "a text or a function of a State")
        wanted = "a function of a group's size, like lambda count: count == 8"
        check_callable("FilterCountGroupedByKey: condition", self.condition, wanted)
        check_duration("FilterCountGroupedByKey: timeout", self.timeout)

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        rank, living = ctx.state.rank, ctx.living
        if rank is None or rank not in living:
            return ctx
        keys = ctx.store.collect(rank, living, lambda: str(self._key(ctx.state)), list, self.timeout)
        kept = {key for key, count in Counter(keys).items() if self.condition(count)}
        ctx.terminated_ranks |= {other for other, key in zip(living, keys, strict=True) if key not in kept}
        return ctx

    def _key(self, state: State) -> Hashable:
        if not isinstance(self.key_or_fn, str):
            return self.key_or_fn(state)
        key: Hashable = getattr(state, self.key_or_fn) if self.key_or_fn in _NAMES else self.key_or_fn
        return key


_NAMES = {field.name for field in fields(State)}
