"""Rounds: how one agreed world becomes the next.

There is one record, a `Round`. It changes only from one version to the next: the members agree on that
(`softrun.agent.consensus.replica`), or it is a compare-and-swap in the store. Every change is one of the transitions
below. An agent that loses the race sees a higher version and goes on from there.

    nothing ──found──▶ OPEN ──seal──▶ SEALED ──seal──▶ SEALED …      number rises with every seal
                        ▲ │             │ │
                        │ └──take_over──┤ └──close──▶ CLOSED
                        └──fall_short───┘   (and OPEN ──fall_short──▶ OPEN)

    OPEN, SEALED ──give_up──▶ GIVEN_UP ──take_over──▶ OPEN      if nobody answers in the other job

- `found`: the first agent makes the record and leads the first meeting.
- `seal`: the single step that closes the membership of a world.
- `fall_short`: a world, or a meeting, lost members and too few are left; those keep their places, paused. Also if the
  leader cannot be in the next world, so that those that can have to seal it.
- `take_over`: all nodes in the record are gone, and a newcomer begins a new meeting.
- `admit_nobody`: nodes have finished; the world stays as it is, nobody may join it, and nobody misses them. Those that
  are not in touch any more are retired: they have no vote on the next record.
- `preempt`: the whole job is told to leave; the world stays as it is until its workers have saved. `seal` and
  `fall_short` keep that.
- `decide`: the workers' calls have an answer, under `--commit durable`; the world stays as it is.
- `attest`: another witness, or none, votes on the next record; the world stays as it is.
- `split`: two records follow the same one; this one goes on under another name, as a job of its own.
- `close`: the job is over.
- `give_up`: it was founded twice, by nodes that did not know of each other, and goes on as the other one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from softrun.agent.protocol.live import Verdict
from softrun.agent.protocol.model import Address, JobSettings, Member, Phase, Round, lineage
from softrun.agent.rendezvous import ranks
from softrun.runtime.events import Preemption, WorkerFault

ALL_BUT_EQUAL_S = 1.0  # what two agents know of each other's job may be that old


def found(founder: Member, settings: JobSettings) -> Round:
    """Return the first record of a job: a meeting with `founder` as its only member, which leads it."""
    return Round(
        version=1,
        number=0,
        phase=Phase.OPEN,
        members=(_without_workers(founder),),
        settings=settings,
        lineage=lineage(founder.node, 1),
    )


def take_over(round_: Round, newcomer: Member, lost: tuple[str, ...]) -> Round:
    """Return a meeting that `newcomer` begins because all nodes in the record are gone; `lost`: the silent ones."""
    stepless = round_.stepless + (round_.phase is Phase.SEALED)  # nobody is left to tell whether it had a step
    return replace(
        _next(round_, given_up=True),
        phase=Phase.OPEN,
        members=(_without_workers(newcomer),),
        lost=lost,
        stepless=stepless,
        heir=None,
        finished=(),
        retired=(),
        worked_s=0.0,  # nobody is left who has what came of it
        finishing=round_.finishing and round_.preemption is None,  # a preempted job goes on
        preemption=None,
    )


def _without_workers(newcomer: Member) -> Member:
    """Drop the workers: an OPEN round names those that keep a place in it, and a newcomer's have none."""
    return replace(newcomer, workers=())


def fall_short(round_: Round, stay: list[Member], lost: tuple[str, ...], begins_again: bool = False) -> Round:
    """Return a meeting of the members that `stay`, with the workers of theirs that were in `round_`.

    `begins_again`: all work is, also what was finished.
    """
    placed = set(ranks.worker_lives(round_))
    kept = [
        replace(m, workers=tuple(w for w in m.workers if (*m.life, w.local_rank, w.incarnation) in placed))
        for m in stay
    ]
    following = _next(round_)
    return replace(
        following,
        phase=Phase.OPEN,
        members=ranks.order(round_, kept),
        lost=lost,
        finishing=_is_finishing(round_, begins_again),
        finished=(),
        retired=(),
        preemption=_at_once(following.preemption),
    )


def seal(
    round_: Round,
    members: list[Member],
    store: Address,
    lost: tuple[str, ...],
    fault: WorkerFault | None = None,
    leave_after: int = 0,
    after: int = 0,
    begins_again: bool = False,
) -> Round:
    """Return the next world, of `members`, whose workers meet at `store`.

    `lost` names the nodes that died, and `fault` is what ended the world before it, if a fault did. `leave_after` is
    the step after which all leave that world; 0: at once. `after`: the highest number of a world that one of the
    members was in, maybe before this job was founded. `begins_again`: all work is, also what was finished.
    """
    number = max(round_.number, after) + 1
    following = _next(round_)
    return replace(
        following,
        number=number,
        fault=fault,
        leave_after=leave_after,
        phase=Phase.SEALED,
        members=ranks.order(round_, members),
        # Only the first world can meet at a place named beforehand: nothing stale is there yet.
        worker_store=None if round_.settings.named_store and number == 1 else store,
        lost=lost,
        finishing=_is_finishing(round_, begins_again),
        finished=(),
        retired=(),
        preemption=_at_once(following.preemption),
    )


def _is_finishing(round_: Round, begins_again: bool) -> bool:
    return round_.finishing and not (begins_again and round_.preemption is None)


def preempt(round_: Round, preemption: Preemption) -> Round:
    """Return the same world, which nobody may join, and all are to leave for good after an agreed step."""
    return replace(_next(round_), leave_after=round_.leave_after, finishing=True, preemption=preemption)


def preempted(round_: Round, preemption: Preemption) -> Round:
    """Return a world that was just sealed as one in which the workers do nothing but save, and leave for good."""
    return replace(round_, finishing=True, preemption=_at_once(preemption))


def _at_once(preemption: Preemption | None) -> Preemption | None:
    """The step was one of the last world."""
    return None if preemption is None else preemption.model_copy(update={"after": 0})


def admit_nobody(round_: Round, finished: Iterable[int] = (), retired: Iterable[int] = ()) -> Round:
    """Return the same world, closed to newcomers because nodes have finished: the members at these places, too.

    `retired`: the places of those that are not in touch any more. As long as they had a vote, the others could go on
    without a further node only if it ended while they were there to see it.
    """
    return replace(
        _next(round_),
        finishing=True,
        finished=tuple(sorted({*round_.finished, *finished})),
        retired=tuple(sorted({*round_.retired, *retired})),
        leave_after=round_.leave_after,
    )


def attest(round_: Round, witness: str) -> Round:
    """Return the same record, on whose successor `witness` has the casting vote; "": nobody has."""
    return replace(_next(round_), lost=round_.lost, leave_after=round_.leave_after, witness=witness)


def decide(round_: Round, verdicts: tuple[Verdict, ...]) -> Round:
    """Return the same record, with the last answers to the calls of its workers."""
    following = _next(round_)
    return replace(
        following,
        lost=round_.lost,
        leave_after=round_.leave_after,
        verdicts=verdicts,
        decided=round_.decided + 1,
    )


def split(round_: Round, node: str) -> Round:
    """Return the same record as one of another job, named after `node`, because its name is that of two."""
    following = _next(round_)
    return replace(
        following,
        lost=round_.lost,
        leave_after=round_.leave_after,
        lineage=f"{node}/{following.version}",
        split_from=round_.split_from or round_.lineage,
    )


def close(round_: Round, outcome: str) -> Round:
    """Return the last record of the job. `outcome` says why the job failed, and is empty after success."""
    return replace(_next(round_, given_up=True), phase=Phase.CLOSED, outcome=outcome)


def give_up(round_: Round, heir: Address) -> Round:
    """Return the last record of a job that was founded twice. Its nodes join the other one, of which `heir` is."""
    return replace(_next(round_), phase=Phase.GIVEN_UP, members=(), finished=(), heir=heir)


def taking_in(round_: Round, verdicts: tuple[Verdict, ...]) -> Round:
    """Return the record with what was decided last in the worlds that it ends."""
    return replace(round_, verdicts=verdicts)


def yields_to(lineage: str, worked_s: float, other: str, other_worked_s: float) -> bool:
    """Whether, of two jobs that are one, that of `lineage` is the one to give up: less work is lost with it.

    That is the one that has had a world for a shorter time. If that is all but equal, their names decide.
    """
    if abs(worked_s - other_worked_s) > ALL_BUT_EQUAL_S:
        return worked_s < other_worked_s
    return lineage < other


def _next(round_: Round, given_up: bool = False) -> Round:
    """What all that follows `round_` has in common; `given_up`: also if that is the last record of such a job."""
    if round_.phase is Phase.CLOSED or (round_.is_last and not given_up):
        raise AssertionError("a closed job was changed")
    return replace(round_, version=round_.version + 1, lost=(), leave_after=0)
