"""The world of one block."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from softrun.runtime.events import WorkerInfo
from softrun.runtime.groups.books import has_group
from softrun.runtime.groups.groups import GroupOptions, build_group
from softrun.runtime.live.members import Live, Member, Tag
from softrun.runtime.share import Share
from softrun.runtime.worlds import World

if TYPE_CHECKING:
    import torch


class LiveWorld:
    """The workers that are in the block, on which all of them agree.

    `changed`: this worker's last block had others, or there was none; build the groups again then.
    """

    def __init__(self, world: World, live: Live, before: Live | None, changed: bool) -> None:
        self._world, self._live, self._before = world, live, before
        self.changed = changed

    @property
    def info(self) -> WorkerInfo:
        """This worker's place."""
        return self._world.info

    @property
    def round(self) -> int:
        """The number of the world."""
        return self._world.round

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self._world.rank

    @property
    def local_rank(self) -> int:
        """The number of this worker's device, as `World.local_rank`."""
        return self._world.local_rank

    @property
    def world_size(self) -> int:
        """How many workers are in the block."""
        return self._world.world_size

    @property
    def members(self) -> tuple[Member, ...]:
        """Who is in the block, in rank order."""
        return self._live.members

    @property
    def joined(self) -> tuple[Member, ...]:
        """Those that were not in this worker's last block of an earlier world: all of them in its first one."""
        known = {member[:2] for member in self._before.members} if self._before is not None else set()
        return tuple(member for member in self.members if member[:2] not in known)

    @property
    def came_back(self) -> bool:
        """Whether the others have gone on without this worker since its last block: it takes its state from them."""
        return self._before is not None and any(member.rank == self.rank for member in self.joined)

    @property
    def tags(self) -> dict[str, Tag]:
        """What each member passed as its step when this world began, by name."""
        return self._live.tags

    @property
    def source(self) -> Member:
        """The first of those that are furthest, by the steps that they passed: who lacks state takes it from there."""
        steps = {name: tag for name, tag in self.tags.items() if isinstance(tag, (int, float))}
        furthest = max(steps.values(), default=0)
        return next((m for m in self.members if steps.get(m.name) == furthest), self.members[0])

    def share(self, global_batch: int) -> Share:
        """Return this rank's part of a global batch, as `World.share`."""
        return self._world.share(global_batch)

    def process_group(
        self,
        backend: str | None = None,
        timeout: timedelta | None = None,
        device_id: torch.device | int | None = None,
    ) -> None:
        """Build torch's default process group of this world, unless it is there. Call it in the block.

        The arguments are those of `World.process_group`. The group is left when the world ends. Raises what torch
        raises if a member is lost meanwhile; let it end the block.
        """
        if not has_group():  # every group of an earlier world was left with it
            build_group(self.info, GroupOptions(backend, timeout, device_id), self.local_rank)
