"""Rounds: how one agreed world becomes the next.

The store holds one record, a `Round`. It changes only by compare-and-swap from one version to the next, and every
change is one of the transitions below. An agent that loses the race sees a higher version and goes on from there.

    nothing ──found──▶ OPEN ──seal──▶ SEALED ──seal──▶ SEALED …      number rises with every seal
                        ▲ │             │ │
                        │ └──take_over──┤ └──close──▶ CLOSED
                        └──fall_short───┘   (and OPEN ──fall_short──▶ OPEN)

- `found`: the first agent makes the record and leads the first meeting.
- `seal`: the single step that closes the membership of a world.
- `fall_short`: a world, or a meeting, lost members and too few are left; those keep their places, paused. Also if the
  leader cannot be in the next world, so that those that can have to seal it.
- `take_over`: all nodes in the record are gone, and a newcomer begins a new meeting.
- `admit_nobody`: the first node has finished; the world stays as it is, and nobody may join it.
- `close`: the job is over.
"""

from __future__ import annotations

from dataclasses import replace

from softrun.agent.protocol.model import Address, JobSettings, Member, Phase, Round
from softrun.agent.rendezvous import ranks
from softrun.runtime.events import WorkerFault


def found(founder: Member, settings: JobSettings) -> Round:
    """Return the first record of a job: a meeting with `founder` as its only member, which leads it."""
    return Round(version=1, number=0, phase=Phase.OPEN, members=(_without_workers(founder),), settings=settings)


def take_over(round_: Round, newcomer: Member, lost: tuple[str, ...]) -> Round:
    """Return a meeting that `newcomer` begins because all nodes in the record are gone; `lost`: the silent ones."""
    stepless = round_.stepless + (round_.phase is Phase.SEALED)  # nobody is left to tell whether it had a step
    return replace(_next(round_), phase=Phase.OPEN, members=(_without_workers(newcomer),), lost=lost, stepless=stepless)


def _without_workers(newcomer: Member) -> Member:
    """Drop the workers: an OPEN round names those that keep a place in it, and a newcomer's have none."""
    return replace(newcomer, workers=())


def fall_short(round_: Round, stay: list[Member], lost: tuple[str, ...]) -> Round:
    """Return a meeting of the members that `stay`, with the workers of theirs that were in `round_`."""
    placed = set(ranks.worker_lives(round_))
    kept = [
        replace(m, workers=tuple(w for w in m.workers if (*m.life, w.local_rank, w.incarnation) in placed))
        for m in stay
    ]
    return replace(_next(round_), phase=Phase.OPEN, members=ranks.order(round_, kept), lost=lost)


def seal(
    round_: Round,
    members: list[Member],
    store: Address,
    lost: tuple[str, ...],
    fault: WorkerFault | None = None,
    leave_after: int = 0,
) -> Round:
    """Return the next world, of `members`, whose workers meet at `store`.

    `lost` names the nodes that died, and `fault` is what ended the world before it, if a fault did. `leave_after` is
    the step after which all leave that world; 0: at once.
    """
    return replace(
        _next(round_),
        number=round_.number + 1,
        fault=fault,
        leave_after=leave_after,
        phase=Phase.SEALED,
        members=ranks.order(round_, members),
        # Only the first world can meet at a place named beforehand: nothing stale is there yet.
        worker_store=None if round_.settings.named_store and round_.number == 0 else store,
        lost=lost,
    )


def admit_nobody(round_: Round) -> Round:
    """Return the same world, closed to newcomers because a node has finished."""
    return replace(_next(round_), finishing=True, leave_after=round_.leave_after)


def close(round_: Round, outcome: str) -> Round:
    """Return the last record of the job. `outcome` says why the job failed, and is empty after success."""
    return replace(_next(round_), phase=Phase.CLOSED, outcome=outcome)


def _next(round_: Round) -> Round:
    if round_.phase is Phase.CLOSED:
        raise AssertionError("a closed job was changed")
    return replace(round_, version=round_.version + 1, lost=(), leave_after=0)
