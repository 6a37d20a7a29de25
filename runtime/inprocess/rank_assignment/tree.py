"""An assignment by topology: ranks are the leaves of a tree, and reserves are taken from nearby.

All ranks must come to the same tree, those that have just joined as well. So in each iteration the ranks tell the first
survivor their places in the topology, and it moves the leaves and tells the others. Every rank keeps the tree, since
that one may be lost.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from functools import cached_property
from heapq import nlargest

from softrun.runtime.inprocess.calls.arguments import check_callable, check_count, check_instance
from softrun.runtime.inprocess.rank_assignment.context import RankAssignment, RankAssignmentCtx, RankDiscarded
from softrun.runtime.inprocess.state import Mode, State

_log = logging.getLogger("softrun.runtime.inprocess")

SHOWN_RANKS = 16


class LayerFlag(Flag):
    """How the loss of an active rank below a branch of this layer is made good."""

    RESERVE = auto()
    """By a reserve from anywhere below the branch."""
    BACKFILL = auto()
    """By the highest active rank below the branch."""


@dataclass(frozen=True)
class Layer:
    """The branches at one depth of a Tree, from the root on: ranks with the same key share a branch."""

    min_ranks: int = 1
    """With fewer healthy ranks than this, all of a branch leave."""
    max_ranks: int | None = None
    """So many are active at most; None: no limit."""
    key_or_fn: str | Callable[[State], str] = ""
    """The key, or a function of a rank's State that gives it, such as `lambda _: socket.gethostname()`."""
    flag: LayerFlag | None = None

    def __post_init__(self) -> None:
        check_count("Layer: min_ranks", self.min_ranks, 1)
        if self.max_ranks is not None:
            check_count("Layer: max_ranks", self.max_ranks, self.min_ranks)
        if not isinstance(self.key_or_fn, str):
            check_callable("Layer: key_or_fn", self.key_or_fn, "a text or a function of a State")
        check_instance("Layer: flag", self.flag, (LayerFlag, type(None)), "a LayerFlag, or None")

    def key(self, state: State) -> str:
        """The key of the branch that a rank with this state belongs to."""
        return self.key_or_fn if isinstance(self.key_or_fn, str) else str(self.key_or_fn(state))

    def has(self, flag: LayerFlag) -> bool:
        """Whether the branches of this layer have a flag."""
        return self.flag is not None and flag in self.flag


@dataclass
class Leaf:
    """A rank's place, and what it does there."""

    path: tuple[str, ...]
    """The keys of its branches, from the root on."""
    active_rank: int | None = None
    lost: bool = False

    @cached_property
    def branches(self) -> tuple[tuple[str, ...], ...]:
        """The paths of its branches, from the root on."""
        return tuple(self.path[:depth] for depth in range(1, len(self.path) + 1))

    @property
    def is_reserve(self) -> bool:
        """Whether it could take the active rank of another."""
        return self.active_rank is None and not self.lost


@dataclass
class Tree(RankAssignment):
    """Numbers the ranks as leaves of a tree, depth first, whose layers say how many of a branch are active.

    At first each rank is active whose branches all allow one more. After a loss:

    1. a branch with fewer than `min_ranks` healthy ranks leaves as a whole
    2. a reserve takes the active rank of a lost one: from the nearest branch around it, upwards as long as the branches
       have the flag RESERVE
    3. or else the highest active rank does, in the widest branch around it up to which all have the flag BACKFILL
    4. the remaining gaps are closed: all ranks above shift down
    5. `world_size_filter(count)` may say that fewer than `count` ranks are to be active

    A replacement in the branch of a lost rank takes its place; if others join, ranks become active again as at first.
    It stands alone: do not put it into a Compose. Raises RankDiscarded on ranks that leave.
    """

    layers: Sequence[Layer]
    world_size_filter: Callable[[int], int] | None = None
    _leaves: list[Leaf] = field(default_factory=list, init=False, repr=False)  # of the last iteration, by rank

    def __post_init__(self) -> None:
        if not self.layers or not all(isinstance(layer, Layer) for layer in self.layers):
            raise TypeError("Tree: layers must be a list of one Layer or more")
        if self.world_size_filter is not None:
            check_callable("Tree: world_size_filter", self.world_size_filter, "a function of the active world size")

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        rank, living = ctx.state.rank, ctx.living
        if rank is None or rank not in living:
            raise RankDiscarded(f"rank {rank} has left and has no place in the tree")
        first = min(living, key=lambda each: (each in ctx.newcomers, each))
        living.insert(0, living.pop(living.index(first)))

        def grow(paths: list[list[str]]) -> list[tuple[int, tuple[str, ...], int | None]]:
            grown = self._grown(dict(zip(living, map(tuple, paths), strict=True)), ctx.newcomers)
            return [(each, leaf.path, leaf.active_rank) for each, leaf in grown]

        told = ctx.store.collect(rank, living, lambda: [layer.key(ctx.state) for layer in self.layers], grow)
        self._leaves = [Leaf(tuple(path), active_rank) for _, path, active_rank in told]
        before = [each for each, _, _ in told]
        if rank not in before:
            raise RankDiscarded(f"rank {rank} leaves: its branch of the tree has too few healthy ranks")
        own = before.index(rank)
        active_rank = self._leaves[own].active_rank
        ctx.state = replace(
            ctx.state,
            rank=own,
            world_size=len(before),
            active_rank=active_rank,
            active_world_size=sum(leaf.active_rank is not None for leaf in self._leaves),
            mode=Mode.INACTIVE if active_rank is None else Mode.ACTIVE,
        )
        ctx.terminated_ranks, ctx.newcomers = set(), set()
        return ctx

    def _grown(self, paths: dict[int, tuple[str, ...]], newcomers: set[int]) -> list[tuple[int, Leaf]]:
        """The leaves that stay, in the order of their new ranks, each with the rank that it had."""
        if len({path[0] for path in paths.values()}) != 1:
            roots = ", ".join(sorted({repr(path[0]) for path in paths.values()}))
            raise ValueError(f"Tree: the first layer must give all ranks one key, not {roots}")
        grown = _Growth(self.layers, self._leaves, paths, newcomers)
        grown.leave_small_branches()
        grown.replace_lost()
        if newcomers or not self._leaves:
            grown.activate_more()
        if self.world_size_filter is not None:
            grown.limit(self.world_size_filter)
        return grown.living()


class _Growth:
    """The tree of the last iteration on its way to the next."""

    def __init__(
        self, layers: Sequence[Layer], leaves: Sequence[Leaf], paths: dict[int, tuple[str, ...]], newcomers: set[int]
    ) -> None:
        self._layers = layers
        stays = {rank for rank in paths if rank not in newcomers and rank < len(leaves)}
        self._leaves = [Leaf(leaf.path, leaf.active_rank, rank not in stays) for rank, leaf in enumerate(leaves)]
        self._ranks = {id(leaf): rank for rank, leaf in enumerate(self._leaves) if rank in stays}
        self._join({rank: paths[rank] for rank in sorted(set(paths) - stays)})
        self._leaves = list(_depth_first(self._leaves))
        self._below: dict[tuple[str, ...], list[Leaf]] = defaultdict(list)
        for leaf in self._leaves:
            for branch in leaf.branches:
                self._below[branch].append(leaf)
        self._reserves: dict[tuple[str, ...], list[Leaf]] = {}
        ranks = [self._ranks[id(leaf)] for leaf in self._leaves if not leaf.lost]
        if not leaves and ranks != sorted(ranks):
            _log.warning("Tree: the topology changes ranks; the ranks %s become 0, 1 and so on", ranks[:SHOWN_RANKS])

    def _join(self, paths: dict[int, tuple[str, ...]]) -> None:
        """Each takes the place of a lost one with its path, or a new one."""
        free: dict[tuple[str, ...], deque[Leaf]] = defaultdict(deque)
        for leaf in self._leaves:
            if leaf.lost:
                free[leaf.path].append(leaf)
        for rank, path in paths.items():
            if free[path]:
                leaf = free[path].popleft()
                leaf.lost = False
            else:
                leaf = Leaf(path)
                self._leaves.append(leaf)
            self._ranks[id(leaf)] = rank

    def leave_small_branches(self) -> None:
        """From the leaves to the root: what leaves below counts above."""
        for depth in reversed(range(len(self._layers))):
            healthy = Counter(leaf.branches[depth] for leaf in self._leaves if not leaf.lost)
            for leaf in self._leaves:
                leaf.lost = leaf.lost or healthy[leaf.branches[depth]] < self._layers[depth].min_ranks

    def replace_lost(self) -> None:
        """Give the active ranks of lost leaves to others, and close the gaps."""
        lost = [leaf for leaf in self._leaves if leaf.lost and leaf.active_rank is not None]
        gaps = sorted(self._backfilled([leaf for leaf in lost if not self._took_reserve(leaf)]))
        for leaf in self._active():
            leaf.active_rank -= bisect_left(gaps, leaf.active_rank)  # type: ignore[operator, type-var]

    def _took_reserve(self, lost: Leaf) -> bool:
        for depth in self._upwards(LayerFlag.RESERVE):
            reserve = self._last_reserve(lost.path[:depth])
            if reserve is not None:
                reserve.active_rank, lost.active_rank = lost.active_rank, None
                return True
        return False

    def _last_reserve(self, branch: tuple[str, ...]) -> Leaf | None:
        """The last below a branch, while reserves become active and nobody becomes a reserve."""
        if branch not in self._reserves:
            self._reserves[branch] = [leaf for leaf in self._below[branch] if leaf.is_reserve]
        reserves = self._reserves[branch]
        while reserves and not reserves[-1].is_reserve:
            reserves.pop()
        return reserves[-1] if reserves else None

    def _backfilled(self, lost: Sequence[Leaf]) -> list[int]:
        """Let the highest active leaves take the ranks of the lost; the gaps that remain."""
        widest = min(self._upwards(LayerFlag.BACKFILL), default=None)
        gaps = []
        domains: dict[tuple[str, ...], list[Leaf]] = {}
        for leaf in lost:
            domains.setdefault(leaf.path if widest is None else leaf.path[:widest], []).append(leaf)
        for domain, members in domains.items():
            below = () if widest is None else self._below[domain]
            active = [leaf for leaf in below if leaf.active_rank is not None and not leaf.lost]
            highest = nlargest(len(members), active, key=lambda leaf: leaf.active_rank or 0)[::-1]
            for number, leaf in enumerate(members):
                if number < len(highest):
                    highest[number].active_rank, leaf.active_rank = leaf.active_rank, highest[number].active_rank
                gaps.append(leaf.active_rank or 0)
                leaf.active_rank = None
        return gaps

    def activate_more(self) -> None:
        """Make those reserves active that all their branches allow, with the next ranks."""
        active = Counter(branch for leaf in self._active() for branch in leaf.branches)
        most = [layer.max_ranks for layer in self._layers]
        for leaf in (leaf for leaf in self._leaves if leaf.is_reserve):
            limits = zip(leaf.branches, most, strict=True)
            if all(limit is None or active[branch] < limit for branch, limit in limits):
                leaf.active_rank = active[leaf.branches[0]]
                for branch in leaf.branches:
                    active[branch] += 1

    def limit(self, world_size_filter: Callable[[int], int]) -> None:
        count = len(self._active())
        most = world_size_filter(count)
        if not 0 <= most <= count:
            raise ValueError(f"Tree: world_size_filter({count}) is {most}; return a number from 0 to {count}")
        for leaf in self._active():
            if (leaf.active_rank or 0) >= most:
                leaf.active_rank = None

    def living(self) -> list[tuple[int, Leaf]]:
        return [(self._ranks[id(leaf)], leaf) for leaf in self._leaves if not leaf.lost]

    def _active(self) -> list[Leaf]:
        return [leaf for leaf in self._leaves if not leaf.lost and leaf.active_rank is not None]

    def _upwards(self, flag: LayerFlag) -> list[int]:
        """The depths of the branches around a leaf, the nearest first, as long as they have the flag."""
        depths = []
        for depth in range(len(self._layers), 0, -1):
            if not self._layers[depth - 1].has(flag):
                break
            depths.append(depth)
        return depths


def _depth_first(leaves: Iterable[Leaf], depth: int = 0) -> Iterator[Leaf]:
    """Branches in the order of their first leaves."""
    branches: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        if depth == len(leaf.path):
            yield leaf
        else:
            branches.setdefault(leaf.path[depth], []).append(leaf)
    for members in branches.values():
        yield from _depth_first(members, depth + 1)
