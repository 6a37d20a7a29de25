"""An image is what one rank has stored of one snapshot. Which snapshot is whole is decided from what keepers hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

Address = tuple[str, int]
"""The host and port of a keeper."""


class Image(BaseModel):
    """The name of an image: rank `rank` of the world `round`, which had `world_size`, has stored it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: str = Field(max_length=64)
    """Which State it is of: a digest of its names."""
    commits: int = Field(ge=0)
    round: int = Field(ge=0)
    rank: int = Field(ge=0)
    world_size: int = Field(ge=1)


class Listing(BaseModel):
    """What one keeper holds that is whole and sealed."""

    model_config = ConfigDict(extra="forbid")

    address: Address
    images: list[Image]


class Snapshot(NamedTuple):
    """A snapshot, all of whose images are held by some keeper."""

    commits: int
    round: int
    images: list[tuple[Image, list[Address]]]
    """By rank: each with the keepers that hold it."""


def newest_whole(listings: Iterable[Listing], state: str) -> Snapshot | None:
    """Find the newest snapshot of a State of which no image is missing; None if there is none."""
    holders: dict[tuple[int, int, int], dict[int, list[Address]]] = {}
    for listing in listings:
        for image in listing.images:
            if image.state == state:
                of_snapshot = holders.setdefault((image.commits, image.round, image.world_size), {})
                addresses = of_snapshot.setdefault(image.rank, [])
                if listing.address not in addresses:
                    addresses.append(listing.address)
    for commits, round_, world_size in sorted(holders, reverse=True):
        found = holders[commits, round_, world_size]
        if set(found) == set(range(world_size)):
            names = (
                Image(state=state, commits=commits, round=round_, rank=rank, world_size=world_size)
                for rank in range(world_size)
            )
            return Snapshot(commits, round_, [(name, found[name.rank]) for name in names])
    return None


def neighbours_of(addresses: Sequence[Address]) -> list[Address | None]:
    """By rank, the keeper that gets a copy: that of the next node. None if there is one node only."""
    nodes = list(dict.fromkeys(addresses))
    if len(nodes) == 1:
        return [None] * len(addresses)
    return [nodes[(nodes.index(address) + 1) % len(nodes)] for address in addresses]


def divided(sizes: Sequence[int], count: int) -> list[int]:
    """Divide tensors of these sizes among `count` ranks that have the same ones: whose each is, by tensor.

    The largest first, each to whoever has the least; all ranks come to the same result.
    """
    loads = [0] * count
    found = [0] * len(sizes)
    for tensor in sorted(range(len(sizes)), key=lambda tensor: (-sizes[tensor], tensor)):
        found[tensor] = loads.index(min(loads))
        loads[found[tensor]] += sizes[tensor]
    return found
