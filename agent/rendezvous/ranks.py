"""Who is which: from a round to the places of its workers.

Ranks are dense and follow the order of `Round.members`. Nodes get the place they ask for (`Member.preferred_rank`,
the user's --node_rank); those that want the same keep their order, survivors before newcomers. If anybody survives,
rank 0 is a survivor, whatever anybody wants, so it can be the source of state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from softrun.agent.protocol.model import Address, Member, Round, Worker
from softrun.runtime.events import WorkerInfo, WorldChangeEvent

WorkerLife = tuple[str, int, int, int]
"""node, its incarnation, local rank, the worker's incarnation."""


def worker_lives(round_: Round) -> list[WorkerLife]:
    """All workers of the world in rank order."""
    return [(*m.life, w.local_rank, w.incarnation) for m in round_.members for w in m.workers]


def places(round_: Round, life: tuple[str, int], named_store: Address | None = None) -> dict[Worker, WorkerInfo]:
    """The place of each worker of one member of a sealed round; `named_store` is what the user has said of where the
    first world meets."""
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
    """What peers are told: SCALE_DOWN where somebody was lost, else SCALE_UP where somebody came, else None."""
    lost, came = _compare(before.members, after.members)
    if lost:
        return WorldChangeEvent.SCALE_DOWN
    return WorldChangeEvent.SCALE_UP if came else None


def shrunk(before: Round, after: Round) -> bool:
    """Is a worker of that round gone?"""
    return _compare(before.members, after.members)[0]


def grown(before: Round, members: list[Member]) -> bool:
    """Is there a worker that is not part of that round?"""
    return _compare(before.members, members)[1]


def _compare(before: Sequence[Member], after: Sequence[Member]) -> tuple[bool, bool]:
    """Is a worker gone, and has one come? Node by node, since most of them have the same workers as before."""
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
    """Does the record know of a later life of this node, or of one of its workers, than a report does?"""
    lives = {w.local_rank: w.incarnation for w in reported.workers}
    return reported.incarnation < placed.incarnation or (
        reported.incarnation == placed.incarnation
        and any(lives.get(w.local_rank, w.incarnation) < w.incarnation for w in placed.workers)
    )


def merge(placed: Member, reported: Member, done: tuple[int, ...]) -> Member:
    """A member that stays: its survivors first in their old rank order, then the workers that are new."""
    if placed.workers == reported.workers and not done:
        return reported
    living = [w for w in reported.workers if w.local_rank not in done]
    survivors = [w for w in placed.workers if w in living]
    return replace(reported, workers=(*survivors, *sorted(w for w in living if w not in survivors)))


def with_member(round_: Round, member: Member) -> Round:
    """The round as it would be if this member were in it, as it stands now."""
    others = [m for m in round_.members if m.node != member.node]
    return replace(round_, members=order(round_, [*others, member]))


def order(before: Round, members: list[Member]) -> tuple[Member, ...]:
    """Members of the next world in rank order; a survivor is one with a surviving worker."""
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
