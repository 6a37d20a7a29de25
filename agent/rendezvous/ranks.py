"""The ranks of a world: from a round to the places of its workers.

Ranks are dense and follow the order of `Round.members`. Nodes are sorted by the rank that they want
(`Member.preferred_rank`, the user's --node_rank); those that want the same one keep their order, survivors before
newcomers. If any node survives, rank 0 is a survivor, whatever the nodes want, so it can be the source of state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from softrun.agent.protocol.model import Address, Member, Round, Worker
from softrun.runtime.events import WorkerInfo, WorldChangeEvent

MOST_LOST = 1000
"""How many lost ranks workers are told of: an event has room for more, and nobody reads them."""

WorkerLife = tuple[str, int, int, int]
"""A node, its incarnation, a local rank, and the worker's incarnation."""


def worker_lives(round_: Round) -> list[WorkerLife]:
    """Return all workers of the world in rank order."""
    return [(*m.life, w.local_rank, w.incarnation) for m in round_.members for w in m.workers]


def places(round_: Round, life: tuple[str, int], named_store: Address | None = None) -> dict[Worker, WorkerInfo]:
    """Return the place of each worker of one member of a sealed round.

    `life` is the member's. `named_store` is what the user has named of the address at which the
    first world meets: a host, a port or both.
    """
    store = _meeting_place(round_, named_store)
    nodes = round_.members
    group_rank = next((i for i, m in enumerate(nodes) if m.node == life[0] and m.incarnation == life[1]), None)
    if group_rank is None:
        raise AssertionError(f"places asked for {life}, which is not in round {round_.number}")
    me = nodes[group_rank]
    sizes = [len(m.workers) for m in nodes]
    role_sizes = [len(m.workers) for m in nodes if m.role == me.role]
    role_before = sum(m.role == me.role for m in nodes[:group_rank])
    first, role_first = sum(sizes[:group_rank]), sum(role_sizes[:role_before])
    world_size, role_size = sum(sizes), sum(role_sizes)
    return {
        worker: WorkerInfo(
            local_rank=worker.local_rank,
            role_rank=role_first + offset,
            rank=first + offset,
            local_world_size=len(me.workers),
            role_world_size=role_size,
            world_size=world_size,
            master_addr=store.host,
            master_port=store.port,
            group_rank=group_rank,
            group_world_size=len(nodes),
        )
        for offset, worker in enumerate(me.workers)
    }


def _meeting_place(round_: Round, named: Address | None) -> Address:
    store = round_.worker_store or named
    if store is not None and named is not None and round_.number == 1:
        store = Address(named.host or store.host, named.port or store.port)
    if store is None or not store.port:
        raise AssertionError("places asked of a round that was never sealed")
    return store


def change(before: Round, after: Round) -> WorldChangeEvent | None:
    """Return what peers are told: SCALE_DOWN if a worker was lost, else SCALE_UP if one joined, else None."""
    lost, came = _compare(before.members, after.members)
    if lost:
        return WorldChangeEvent.SCALE_DOWN
    return WorldChangeEvent.SCALE_UP if came else None


def lost(before: Round, after: Round) -> tuple[int, ...]:
    """Return the ranks of `before` whose workers are not in `after`, at most the first MOST_LOST of them."""
    staying = {m.life: m.workers for m in after.members}
    gone: list[int] = []
    first = 0
    for member in before.members:
        kept = staying.get(member.life, ())
        if kept != member.workers:
            gone += [first + offset for offset, worker in enumerate(member.workers) if worker not in kept]
        first += len(member.workers)
    return tuple(gone[:MOST_LOST])


def shrunk(before: Round, after: Round) -> bool:
    """Return whether a worker of `before` is not in `after`."""
    return _compare(before.members, after.members)[0]


def grown(before: Round, members: list[Member]) -> bool:
    """Return whether `members` have a worker that is not in `before`."""
    return _compare(before.members, members)[1]


def _compare(before: Sequence[Member], after: Sequence[Member]) -> tuple[bool, bool]:
    """Return whether a worker is gone, and whether one joined: node by node, since most have the same workers."""
    gone = {m.node: m for m in before}
    lost = came = False
    for member in after:
        placed = gone.pop(member.node, None)
        if placed is None or placed.incarnation != member.incarnation:
            lost |= placed is not None and bool(placed.workers)
            came |= bool(member.workers)
        elif placed.workers != member.workers:
            lost |= not set(placed.workers) <= set(member.workers)
            came |= not set(member.workers) <= set(placed.workers)
    return lost or any(m.workers for m in gone.values()), came


def outdated(reported: Member, placed: Member) -> bool:
    """Return whether the record knows a later incarnation of this node, or of one of its workers, than the report."""
    lives = {w.local_rank: w.incarnation for w in reported.workers}
    return reported.incarnation < placed.incarnation or (
        reported.incarnation == placed.incarnation
        and any(lives.get(w.local_rank, w.incarnation) < w.incarnation for w in placed.workers)
    )


def merge(placed: Member, reported: Member, done: tuple[int, ...]) -> Member:
    """Return a member that stays: its survivors in their old rank order, then its new workers.

    Workers whose local rank is in `done` are left out.
    """
    if placed.workers == reported.workers and not done:
        return reported
    living = [w for w in reported.workers if w.local_rank not in done]
    survivors = [w for w in placed.workers if w in living]
    return replace(reported, workers=(*survivors, *sorted(w for w in living if w not in survivors)))


def with_member(round_: Round, member: Member) -> Round:
    """Return the round as it would be with this member in it, as the member is now."""
    others = [m for m in round_.members if m.node != member.node]
    return replace(round_, members=order(round_, [*others, member]))


def order(before: Round, members: list[Member]) -> tuple[Member, ...]:
    """Return the members of the next world in rank order. A survivor is a member with a surviving worker."""
    old = {m.life: m.workers for m in before.members}

    def survives(member: Member) -> bool:
        placed = old.get(member.life, ())
        return any(worker in placed for worker in member.workers)

    survivors = [m for m in members if survives(m)]
    in_order = survivors + [m for m in members if not survives(m)]
    in_place = sorted(in_order, key=lambda m: m.preferred_rank)
    if survivors and not survives(in_place[0]):
        in_place.sort(key=lambda m: not survives(m))
    return tuple(in_place)
