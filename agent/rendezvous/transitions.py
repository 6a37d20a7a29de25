"""Rounds: how one agreed world becomes the next.

One record, `Round`, lies in the store. It changes only by compare-and-swap from one version to the next, and every
change is one of the transitions below. An agent that loses the race
sees a higher version and goes on from there.

    nothing ──found──▶ OPEN ──seal──▶ SEALED ──seal──▶ SEALED …      number rises with every seal
                        ▲ │             │ │
                        │ └──take_over──┤ └──close──▶ CLOSED
                        └──fall_short───┘   (and OPEN ──fall_short──▶ OPEN)

- `found`: the first agent makes the record and leads the first meeting.
- `seal`: the single step that closes the membership of a world.
- `fall_short`: a world, or a meeting, lost members and too few are left; those keep their place, paused. Also where the
  leader cannot be in the next world, and a node that can be in it has to seal it.
- `take_over`: everybody in the record is gone, and a newcomer begins a new meeting.
- `admit_nobody`: the first node has finished; the world stays as it is.
- `close`: the job is over.
"""

from __future__ import annotations

from dataclasses import replace

from softrun.agent.protocol.model import Address, JobSettings, Member, Phase, Round
from softrun.agent.rendezvous import ranks
from softrun.runtime.events import WorkerFault


def found(founder: Member, settings: JobSettings) -> Round:
    """The first record of a job: a meeting with `founder`, who leads it."""
    return Round(version=1, number=0, phase=Phase.OPEN, members=(_without_workers(founder),), settings=settings)


def take_over(round_: Round, newcomer: Member, lost: tuple[str, ...]) -> Round:
    """A meeting that a newcomer begins, because everybody in the record is gone."""
    stepless = round_.stepless + (round_.phase is Phase.SEALED)  # nobody is left to tell whether it had a step
    return replace(_next(round_), phase=Phase.OPEN, members=(_without_workers(newcomer),), lost=lost, stepless=stepless)


def _without_workers(newcomer: Member) -> Member:
    """An OPEN round names the workers that keep a place in it; a newcomer's have none."""
    return replace(newcomer, workers=())


def fall_short(round_: Round, stay: list[Member], lost: tuple[str, ...]) -> Round:
    """A meeting of the members that `stay`, because they are too few for a world."""
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
    """The next world. `leave_after`: the step after which all leave the world before it; 0 is at once."""
    return replace(
        _next(round_),
        number=round_.number + 1,
        fault=fault,
        leave_after=leave_after,
        phase=Phase.SEALED,
        members=ranks.order(round_, members),
        # Only the first world can meet in a place that was named beforehand: nobody has left anything there yet.
        worker_store=None if round_.settings.named_store and round_.number == 0 else store,
        lost=lost,
    )


def admit_nobody(round_: Round) -> Round:
    """The same world, which nobody may join any more, because a node has finished."""
    return replace(_next(round_), finishing=True, leave_after=round_.leave_after)


def close(round_: Round, outcome: str) -> Round:
    """The job is over; `outcome` says why it failed, and is empty after success."""
    return replace(_next(round_), phase=Phase.CLOSED, outcome=outcome)


def _next(round_: Round) -> Round:
    if round_.phase is Phase.CLOSED:
        raise AssertionError("a closed job was changed")
    return replace(round_, version=round_.version + 1, lost=(), leave_after=0)
