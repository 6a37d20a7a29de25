"""Who is which: from a round to the places of its workers.

Ranks are dense and follow the order of `Round.members`. Nodes stand where they want to stand (`Member.place`, the
user's --node_rank); those that want the same keep their order, survivors before newcomers. Rank 0 is always a survivor
where there is one, whatever anybody wants, so it can be the source of state.
"""

from __future__ import annotations

from dataclasses import replace

from softrun.agent.model import Address, Member, Round, Worker
from softrun.runtime.events import WorkerInfo, WorldChangeEvent

WorkerLife = tuple[str, int, int, int]
"""node, its incarnation, local rank, the worker's incarnation."""


def worker_lives(round_: Round) -> list[WorkerLife]:
    """All workers of the world in rank order."""
    return [(*m.life, w.local_rank, w.incarnation) for m in round_.members for w in m.workers]


def places(round_: Round, life: tuple[str, int], named_store: Address | None = None) -> dict[Worker, WorkerInfo]:
    """The place of each worker of one member of a sealed round; `named_store` is where the first world meets, if the
    user has said where."""
    store = round_.worker_store or named_store
    if store is None:
        raise AssertionError("places asked of a round that was never sealed")
    nodes = round_.members
    world_size = sum(len(m.workers) for m in nodes)
    group_rank = next((i for i, m in enumerate(nodes) if m.life == life), None)
    if group_rank is None:
        raise AssertionError(f"places asked for {life}, which is not in round {round_.number}")
    me = nodes[group_rank]
    first = sum(len(m.workers) for m in nodes[:group_rank])
    role_first = sum(len(m.workers) for m in nodes[:group_rank] if m.role == me.role)
    role_size = sum(len(m.workers) for m in nodes if m.role == me.role)
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


def change(before: Round, after: Round) -> WorldChangeEvent | None:
    """What peers are told: SCALE_DOWN where somebody was lost, else SCALE_UP where somebody came, else None."""
    old, new = _workers(before), _workers(after)
    if _beyond(old, new):
        return WorldChangeEvent.SCALE_DOWN
    return WorldChangeEvent.SCALE_UP if _beyond(new, old) else None


def _workers(round_: Round) -> dict[tuple[str, int], tuple[Worker, ...]]:
    """By the lives of their nodes: a world has many more workers than nodes, and those of a node are mostly the same."""
    return {m.life: m.workers for m in round_.members}


def _beyond(some: dict[tuple[str, int], tuple[Worker, ...]], others: dict[tuple[str, int], tuple[Worker, ...]]) -> bool:
    """Is there a worker among them that is not among the others?"""
    return any(
        workers != (same := others.get(life, ())) and not set(workers) <= set(same) for life, workers in some.items()
    )


def grown(before: Round, members: list[Member]) -> bool:
    """Is there a worker that is not part of that round?"""
    return _beyond({m.life: m.workers for m in members}, _workers(before))


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
    old = _workers(before)

    def survives(member: Member) -> bool:
        placed = old.get(member.life, ())
        return any(worker in placed for worker in member.workers)

    survivors = [m for m in members if survives(m)]
    in_order = survivors + [m for m in members if not survives(m)]
    in_place = sorted(in_order, key=lambda m: m.place)
    if survivors and not survives(in_place[0]):
        in_place.sort(key=lambda m: not survives(m))
    return tuple(in_place)
