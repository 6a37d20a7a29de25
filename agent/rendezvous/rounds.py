"""Rounds: how one agreed world becomes the next.

One record, `Round`, lies in the store. It changes only by compare-and-swap from one version to the next, and every
change is one of the transitions below. Whoever loses the race sees a higher version and goes on from there.

    nothing ──found──▶ OPEN ──seal──▶ SEALED ──seal──▶ SEALED …      number rises with every seal
                        ▲ │             │ │
                        │ └──take_over──┤ └──close──▶ CLOSED
                        └──fall_short───┘   (and OPEN ──fall_short──▶ OPEN)

- `found`: the first agent makes the record and leads the first meeting.
- `seal`: the single step that closes the membership of a world.
- `fall_short`: a world, or a meeting, lost members and too few are left; those keep their place, paused. Also where the
  leader cannot be in the next world, and those who can have to seal it.
- `take_over`: everybody in the record is gone, and a newcomer begins a new meeting.
- `admit_nobody`: the first node has finished; the world stays as it is.
- `close`: the job is over.

Who proposes: the **leader**, the first member of the record that lives, has not withdrawn and can be in the next world,
too (`softrun.agent.rendezvous.election`). Members say what they want to their leader alone, over a link (`Report`), so
joining N nodes costs O(N) messages and the store sees one write for a change, however many nodes it concerns. A leader
that is dead, or leaves, is followed by the next member; the others find that out by the same rule and report to it. Two
that both believe to lead are harmless: the store takes one of their rounds.

`decide` is what a leader does. It is a pure function of what it has heard, so it may be asked as often as one likes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from softrun.agent.protocol.model import Address, JobSettings, Member, NodeIntent, Phase, Report, Round
from softrun.agent.rendezvous import ranks
from softrun.runtime.events import WorkerFault, joined

MOST_APART = 10  # steps; ranks that are further apart do not count alike, and no step is the same for all

# --- transitions


def found(founder: Member, settings: JobSettings) -> Round:
    return Round(version=1, number=0, phase=Phase.OPEN, members=(_without_workers(founder),), settings=settings)


def take_over(round_: Round, newcomer: Member, lost: tuple[str, ...]) -> Round:
    stepless = round_.stepless + (round_.phase is Phase.SEALED)  # nobody is left to tell whether it had a step
    return replace(_next(round_), phase=Phase.OPEN, members=(_without_workers(newcomer),), lost=lost, stepless=stepless)


def _without_workers(newcomer: Member) -> Member:
    """An OPEN round names the workers that keep a place in it; a newcomer's have none."""
    return replace(newcomer, workers=())


def fall_short(round_: Round, stay: list[Member], lost: tuple[str, ...]) -> Round:
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
    return replace(_next(round_), finishing=True, leave_after=round_.leave_after)


def close(round_: Round, outcome: str) -> Round:
    return replace(_next(round_), phase=Phase.CLOSED, outcome=outcome)


def _next(round_: Round) -> Round:
    if round_.phase is Phase.CLOSED:
        raise AssertionError("a closed job was changed")
    return replace(round_, version=round_.version + 1, lost=(), leave_after=0)


# --- what became of a member


class MemberStatus(Enum):
    STAYS = "stays"
    UNHEARD = "unheard"  # not heard of since this agent began to ask; nobody knows whether it lives
    DONE = "done"  # finished
    WITHDRAWN = "withdrawn"  # wants out, or has become another incarnation
    LOST = "lost"  # dead


def status_of(member: Member, report: Report | None, dead: bool) -> MemberStatus:
    """What became of a member of the record, as far as one agent can tell."""
    if report is not None and report.intent is NodeIntent.FINISHED and report.member.life == member.life:
        return MemberStatus.DONE  # and stays so: that its agent goes away later takes nothing from it
    if dead:
        return MemberStatus.LOST
    if report is None:
        return MemberStatus.UNHEARD
    if report.member.life != member.life or report.intent is not NodeIntent.READY:
        return MemberStatus.WITHDRAWN
    return MemberStatus.STAYS


def goes_on(round_: Round, report: Report) -> bool:
    """Can a member that stays be in the next world, too?"""
    return not report.leaving and report.yields != round_.version


# --- what a leader does


@dataclass(frozen=True)
class LeaderTimeouts:
    """How long a leader waits, in seconds."""

    last_call_s: float  # for more newcomers, once there are enough: before the first world, and before one that grows
    broken_s: float  # for the loss that explains a broken world, before the same members form a new one
    barrier_s: float = 0.0  # for the step that all can reach, where nobody was lost; 0: nobody is asked
    telling_s: float = 0.0  # until all have been told of a world: so long they go on in the last one
    converges: bool = False  # workers show whether they work: worlds in which nobody did are counted


@dataclass
class LeaderTimers:
    """Since when a leader has been waiting, by its own clock; kept from one decision to the next."""

    enough_since: float | None = None
    broken_since: float | None = None
    fault_since: float | None = None
    barrier_since: float | None = None
    attempts: int = 0  # how often a barrier has come to nothing


@dataclass(frozen=True)
class Decision:
    """`proposal` for the store, if it is time; the reason; and when to ask again without any news.

    `asks_barrier`: the workers are to agree on a step. `expels_leavers`: those who leave are to go without.

    A decision looks at all N nodes, and N nodes report when a world begins or ends, so the last four say which reports
    cannot change it: `stands` knows.
    """

    reason: str
    proposal: Round | None = None
    again_at: float | None = None
    asks_barrier: bool = False
    expels_leavers: bool = False
    crowd: int = 0  # while fewer nodes have been heard than that, newcomers change nothing
    unheard: str = ""  # until this node was heard, or is dead, only the end of the job would change anything
    unanswered: str = ""  # until this node says which step it can reach, it changes nothing what others say of that
    unfinished: str = ""  # until this node has finished, it changes nothing that others do


def stands(decision: Decision, before: Report | None, report: Report, heard: int, missed: bool) -> bool:
    """Would the leader decide just so once more, now that `report` has come in the place of `before`?

    `heard` counts the nodes that it has heard; `missed`: one of them has missed a world. True only where it is certain.
    """
    if report.intent is NodeIntent.FAILED:
        return False
    if decision.unheard and decision.unheard != report.member.node:
        return True
    if missed:
        return False
    if before is None:
        plain = Report(report.member, NodeIntent.READY, sequence=report.sequence)
        return report == plain and heard < decision.crowd
    others_owe = decision.unanswered not in ("", report.member.node)
    same = replace(
        before,
        sequence=report.sequence,
        since=report.since,
        barrier_answer=report.barrier_answer if others_owe else before.barrier_answer,
        barrier_request=report.barrier_request,  # what leaders say
        release_version=report.release_version,
        expels_leavers=report.expels_leavers,
    )
    if decision.unfinished and decision.unfinished != report.member.node and report.intent is NodeIntent.FINISHED:
        same = replace(same, intent=report.intent, done=report.done, through=report.through)
    return report == same


def decide(
    round_: Round,
    reports: dict[str, Report],
    dead: set[str],
    store: Address,
    timeouts: LeaderTimeouts,
    timers: LeaderTimers,
    now: float,
) -> Decision:
    """Return what the leader of `round_` should propose.

    `reports` holds the newest report of every node that this leader has heard since it began to lead, itself included,
    in the order in which they came; `store` is the worker store that it would lend the next world. Nothing is sealed
    before every member was heard or is dead: a leader that has just begun cannot know who died before.
    """
    if round_.phase is Phase.CLOSED:
        return Decision("the job is over")
    for node in sorted(reports):
        if reports[node].intent is NodeIntent.FAILED:
            return Decision(f"{node} failed", close(round_, reports[node].reason))

    statuses = {m.node: status_of(m, reports.get(m.node), m.node in dead) for m in round_.members}
    unheard = [m.node for m in round_.members if statuses[m.node] is MemberStatus.UNHEARD]
    lost = tuple(sorted(node for node, what in statuses.items() if what is MemberStatus.LOST))
    stay = _stay(round_, reports, statuses)
    # One that was taken for dead while it finished is believed too: the work is done, whoever is counted in the world.
    anyone_done = any(report.intent is NodeIntent.FINISHED for report in reports.values())
    anyone_through = anyone_done or round_.finishing or any(report.through for report in reports.values())

    if unheard:
        return Decision(f"waiting to hear of {_named(unheard)}", unheard=unheard[-1])
    may_return = any(report.stuck and report.intent is NodeIntent.READY for report in reports.values())
    over = bool(round_.number) and anyone_through and not _survivors(round_, reports, stay)
    over = over or (round_.phase is Phase.SEALED and _too_late(round_, reports, stay))
    if over and not may_return:
        return Decision("everybody has finished", close(round_, ""))
    if anyone_done and not round_.finishing:
        return Decision("a node has finished", admit_nobody(round_))
    if over:  # nobody begins from the beginning meanwhile
        return Decision("everybody has finished but a worker that may come back")

    newcomers = [] if round_.finishing else _newcomers(round_, reports, dead)
    least = 1 if round_.finishing else round_.settings.min_nodes
    leaving = [m.node for m in stay if reports[m.node].leaving]
    if leaving and (
        round_.phase is Phase.OPEN or round_.finishing or len(stay) + len(newcomers) - len(leaving) < least
    ):
        return Decision(f"{', '.join(leaving)} cannot be waited for", expels_leavers=True)
    stay = [m for m in stay if m.node not in leaving]
    room = round_.settings.max_nodes - len(stay)
    world = [*stay, *newcomers[: max(room, 0)]]
    enough = len(world) >= least
    full = len(world) >= round_.settings.max_nodes
    if not enough:
        timers.enough_since = None

    if round_.phase is Phase.OPEN:
        if not enough:
            reason = f"{len(world)} of at least {round_.settings.min_nodes} nodes are here"
            if lost and stay:
                # Those who live after all, behind another who believes to lead, learn from this to come back.
                return Decision(reason, fall_short(round_, stay, lost))
            return Decision(reason, crowd=0 if lost else round_.settings.min_nodes)
        if round_.number or full or round_.finishing:
            return Decision(f"{len(world)} nodes are enough", seal(round_, world, store, lost))
        return _after_last_call(round_, world, store, timeouts, timers, now)

    fault = _fault(round_, reports)
    if lost or _shrunk(round_, reports, statuses):
        if enough:
            return Decision(_who_is_missing(stay, statuses), seal(round_, world, store, lost, _anywhere(fault)))
        if stay:
            return Decision("too few nodes are left", fall_short(round_, stay, lost))
        return Decision("nobody is left in this world")
    if fault is not None and enough:
        alone = len(world) == len(stay) and not ranks.grown(round_, stay)
        if timers.fault_since is None:
            timers.fault_since = now
        due = timers.fault_since + fault.last_call_wait
        if now < due:
            return Decision("a worker has a fault; last call for those of others", again_at=due)
        return Decision("a worker has a fault", seal(round_, world, store, lost, fault if alone else _anywhere(fault)))
    if _broken(round_, reports) and enough:
        if timers.broken_since is None:
            timers.broken_since = now
        due = timers.broken_since + timeouts.broken_s
        if now >= due:
            return Decision("the world is broken, though nobody is lost", seal(round_, world, store, lost))
        return Decision("the world is broken; waiting for the loss that explains it", again_at=due)
    timers.broken_since = None
    decision = None
    if leaving:
        decision = Decision(f"{', '.join(leaving)} leaves", seal(round_, world, store, lost))
    elif len(world) > len(stay) or ranks.grown(round_, stay):
        if full:
            decision = Decision("newcomers fill the world", seal(round_, world, store, lost))
        else:
            decision = _after_last_call(round_, world, store, timeouts, timers, now)
    if decision is None:
        timers.enough_since = None
        return Decision("nothing to do", unfinished=stay[-1].node if stay and round_.finishing else "")
    return _between_steps(round_, reports, decision, timeouts, timers, now)


def _between_steps(
    round_: Round,
    reports: dict[str, Report],
    decision: Decision,
    timeouts: LeaderTimeouts,
    timers: LeaderTimers,
    now: float,
) -> Decision:
    """Nobody was lost, so nobody need be interrupted: before the world is sealed, agree where to leave the last one."""
    if decision.proposal is None or not timeouts.barrier_s:
        return decision
    answered = {m.node: reports[m.node].barrier_answer for m in round_.members}
    request = (round_.version, timers.attempts)
    answers = [answer for answer in answered.values() if answer is not None and answer.request == request]
    last = max((answer.last for answer in answers), default=0)
    if len(answers) == len(answered) and (not last or all(answer.all for answer in answers)):
        alike = last - min((answer.first for answer in answers if answer.first), default=0) <= MOST_APART
        step_s = max(answer.step_s for answer in answers)
        leave_after = last + int(timeouts.telling_s / step_s if step_s else 0) if last and alike else 0
        return replace(decision, proposal=replace(decision.proposal, leave_after=leave_after), asks_barrier=True)
    if timers.barrier_since is None:
        timers.barrier_since = now
    due = timers.barrier_since + timeouts.barrier_s
    if now >= due:
        return decision
    silent = [node for node, answer in answered.items() if answer is None or answer.request != request]
    waited_for = silent or [node for node, answer in answered.items() if answer is not None and not answer.all]
    return Decision(
        f"{decision.reason}; agreeing on a step", again_at=due, asks_barrier=True, unanswered=waited_for[-1]
    )


def _after_last_call(
    round_: Round, world: list[Member], store: Address, timeouts: LeaderTimeouts, timers: LeaderTimers, now: float
) -> Decision:
    if timers.enough_since is None:
        timers.enough_since = now
    due = timers.enough_since + timeouts.last_call_s
    if now >= due:
        return Decision(f"{len(world)} nodes after the last call", seal(round_, world, store, ()))
    return Decision(f"{len(world)} nodes, last call", again_at=due, crowd=round_.settings.max_nodes)


def _stay(round_: Round, reports: dict[str, Report], statuses: dict[str, MemberStatus]) -> list[Member]:
    merged = [
        ranks.merge(m, reports[m.node].member, reports[m.node].done)
        for m in round_.members
        if statuses[m.node] is MemberStatus.STAYS
    ]
    return [m for m in merged if m.workers]


def _survivors(round_: Round, reports: dict[str, Report], stay: list[Member]) -> list[Member]:
    """Those with a worker that has what was done, since it was there.

    Where nobody has shown that the workers work together, that is whoever is in this world.
    """
    if worked := max((report.through for report in reports.values()), default=0):
        return [m for m in stay if 0 < reports[m.node].since <= worked]
    placed = {m.life: m.workers for m in round_.members}
    return [m for m in stay if any(worker in placed[m.life] for worker in m.workers)]


def _newcomers(round_: Round, reports: dict[str, Report], dead: set[str]) -> list[Member]:
    """Those whose workers can begin: a node that came while others worked names none before they are ready."""
    placed = {m.life for m in round_.members}
    newcomers = [
        ranks.merge(report.member, report.member, report.done)
        for node, report in reports.items()
        if report.intent is NodeIntent.READY
        and not report.leaving
        and report.member.life not in placed
        and node not in dead
    ]
    return [m for m in newcomers if m.workers]


def _too_late(round_: Round, reports: dict[str, Report], stay: list[Member]) -> bool:
    """Are only those left who would have to begin from the beginning, since all the others were through before?"""
    missed = any(report.missed_round == round_.number for report in reports.values())
    return missed and not _survivors(round_, reports, stay)


def _shrunk(round_: Round, reports: dict[str, Report], statuses: dict[str, MemberStatus]) -> bool:
    """Is a worker of this world gone that has not simply finished? A report goes on to name those that have.

    A node that has finished has failed workers, too, where failures are recorded.
    """
    return any(
        statuses[m.node] in (MemberStatus.WITHDRAWN, MemberStatus.LOST)
        or (statuses[m.node] is MemberStatus.STAYS and not _names_all(reports[m.node].member, m))
        or (
            statuses[m.node] is MemberStatus.DONE and not {w.local_rank for w in m.workers} <= set(reports[m.node].done)
        )
        for m in round_.members
    )


def _names_all(reported: Member, placed: Member) -> bool:
    return placed.workers == reported.workers or set(placed.workers) <= set(reported.workers)


def _broken(round_: Round, reports: dict[str, Report]) -> bool:
    """Do its workers say so, or do they wait for one that has exited before it had asked for this world?

    A script none of whose workers asks does not wait for that one either.
    """
    placed = {m.life for m in round_.members}
    there = [report for report in reports.values() if report.member.life in placed]
    if any(report.broken_round == round_.number for report in there):
        return True
    return any(report.asks for report in there) and any(report.never_came == round_.number for report in there)


def _fault(round_: Round, reports: dict[str, Report]) -> WorkerFault | None:
    """What befell workers of this world, with the outermost wrapper that one of them needs."""
    placed = {m.life for m in round_.members}
    faults = [
        r.fault
        for r in reports.values()
        if r.fault is not None and r.fault.round == round_.number and r.member.life in placed
    ]
    return joined(faults) if faults else None


def _anywhere(fault: WorkerFault | None) -> WorkerFault | None:
    """Where somebody was lost or came as well, nobody knows of a wrapper that all the others are in."""
    return None if fault is None else fault.model_copy(update={"depth": 0})


def _who_is_missing(stay: list[Member], statuses: dict[str, MemberStatus]) -> str:
    told = [
        f"{node} {what.value}"
        for node, what in sorted(statuses.items())
        if what in (MemberStatus.LOST, MemberStatus.WITHDRAWN)
    ]
    return _named(told) or f"a worker is gone, {sum(len(m.workers) for m in stay)} stay"


def _named(nodes: list[str]) -> str:
    return ", ".join(nodes if len(nodes) <= 10 else [*nodes[:9], f"{len(nodes) - 9} more"])
