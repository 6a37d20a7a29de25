"""What a leader decides: which transition of the record it proposes next, if any.

The **leader** proposes: the first member of the record that lives, has not withdrawn and can be in the next world, too
(`softrun.agent.rendezvous.election`). Members report what they want only to their leader, over a link (`Report`), so
joining N nodes costs O(N) messages, and a change costs the store one write, however many nodes it concerns. If the
leader dies or leaves, the next member leads; the others find that out by the same rule and report to it. Two agents
that both believe they lead do no harm: the store takes only one of their rounds.

`decide` depends only on its arguments, so it may be called at any time; what it remembers is in its `LeaderTimers`. It
goes through its phases in order, and the first that has an answer decides: the order is the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from softrun.agent.protocol.descriptions import count
from softrun.agent.protocol.model import Address, Member, NodeIntent, Phase, Report, Round
from softrun.agent.rendezvous import member_status, ranks, transitions
from softrun.agent.rendezvous.member_status import MemberStatus
from softrun.runtime.events import Preemption, WorkerFault, joined

QUIET_LOOK_S = 0.1  # one that was not heard for a while has so long to say what became of it
MOST_APART = 10  # steps; ranks further apart do not count the same steps, so they have no step in common


@dataclass(frozen=True)
class LeaderTimeouts:
    """How long a leader waits, in seconds."""

    last_call_s: float  # for more newcomers once there are enough, before the first world and before one that grows
    broken_s: float  # for the loss that explains a broken world, before the same members form a new one
    quiet_s: float = 0.0  # for the same, while a member is not heard
    barrier_s: float = 0.0  # for agreement on a step that all can reach, if nobody was lost; 0: no step barrier
    telling_s: float = 0.0  # until all have heard of a world; that long they go on in the last one
    converges: bool = False  # workers show whether they work, so worlds in which none did are counted
    stopping_s: float = 0.0  # for agreement on the step after which the whole job stops
    together_s: float = 0.0  # after one node was told to leave, for others that may be told at the same moment
    gives_up_s: float = 0.0  # for members that are missing, before those that wait for them save and leave; 0: for ever
    save_s: float = 0.0  # how long they may take to do that
    begins_again: bool = False  # each new world begins all work again, also what was finished


@dataclass
class LeaderTimers:
    """Since when a leader has been waiting, by its own clock in seconds; kept from one decision to the next."""

    enough_since: float | None = None
    broken_since: float | None = None
    quiet_at: float = -inf
    fault_since: float | None = None
    barrier_since: float | None = None
    attempts: int = 0  # how many barriers have come to nothing
    leaving_since: float | None = None
    finished_since: float | None = None
    short_since: float | None = None


@dataclass(frozen=True)
class Decision:
    """What a leader does now, and the reason: the `proposal` for the store, if it is time for one.

    `again_at` is when to decide again without any news, in seconds by the engine's clock; None: with the next news.
    `asks_barrier`: the workers are to agree on a step. `expels_leavers`: nodes that leave must not wait for others.
    `hands_over`: the leader leaves, and another is to lead on.

    A decision looks at all N nodes, and N nodes report when a world begins or ends. So the last five fields say which
    reports cannot change it (`softrun.agent.rendezvous.decision_cache`).
    """

    reason: str
    proposal: Round | None = None
    again_at: float | None = None
    asks_barrier: bool = False
    expels_leavers: bool = False
    hands_over: bool = False
    crowd: int = 0  # while fewer nodes than this have been heard, newcomers change nothing
    unheard: str = ""  # until this node is heard or dead, only a failure that ends the job changes anything
    unanswered: str = ""  # until this node answers the barrier, the answers of others change nothing
    unfinished: str = ""  # until this node has finished, it changes nothing if others finish, but for the leader
    leader: str = ""  # who decides, if it waits for one that has not finished

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way: the leader waits for news, and knows of all members how they are."""
        waits = self.again_at is not None or self.unheard != ""
        acts = self.proposal is not None or self.asks_barrier or self.expels_leavers or self.hands_over
        return not (waits or acts)


def decide(
    round_: Round,
    reports: dict[str, Report],
    dead: set[str],
    store: Address,
    timeouts: LeaderTimeouts,
    timers: LeaderTimers,
    now: float,
    quiet: bool = False,
    leader: str = "",
    away: Collection[str] = (),
) -> Decision:
    """Return what the leader of `round_` is to propose, or why it waits and until when.

    `reports` holds the newest report of each node that this leader has heard, itself included, in the order in which
    the nodes came; `dead` names the nodes that it takes for dead; `store` is the worker store that it would lend the
    next world. `timers` is updated. `now` is the engine's, in seconds. `quiet`: a member was not heard for a while, and
    may turn out to be dead. `leader` is the node that decides. `away` names those that have finished, are not dead and
    have not been heard since it leads. Nothing is sealed until every member has been heard or
    is dead: a leader that has just begun cannot know who died before.
    """
    if round_.is_last:
        return Decision("the job is over")
    case = _Case(round_, reports, dead, store, timeouts, timers, now, quiet, leader, away)
    return next(decision for phase in _PHASES if (decision := phase(case)) is not None)


@dataclass(eq=False)
class _Case:
    """The arguments of `softrun.agent.rendezvous.decisions.decide`, and what follows from them."""

    round: Round
    reports: dict[str, Report]
    dead: set[str]
    store: Address
    timeouts: LeaderTimeouts
    timers: LeaderTimers
    now: float
    quiet: bool
    leader: str
    away: Collection[str]

    @cached_property
    def statuses(self) -> dict[str, MemberStatus]:
        return {
            m.node: member_status.status_of(
                m, self.reports.get(m.node), m.node in self.dead, self.round, self.timeouts.begins_again
            )
            for m in self.round.members
        }

    @cached_property
    def of_this_job(self) -> dict[str, Report]:
        """What those that are in another job have done was not done here, and may be done again."""
        elsewhere = [node for node, r in self.reports.items() if member_status.is_elsewhere(r, self.round)]
        return {node: r for node, r in self.reports.items() if node not in elsewhere} if elsewhere else self.reports

    @cached_property
    def lost(self) -> tuple[str, ...]:
        return tuple(sorted(node for node, what in self.statuses.items() if what is MemberStatus.LOST))

    @property
    def missing(self) -> tuple[str, ...]:
        """Those that are not in the next world because they are gone."""
        return tuple(sorted((*self.lost, *self.gone))) if self.begins_again else self.lost

    @cached_property
    def living(self) -> list[Member]:
        """The members that have a place in the next world, including those that want to leave."""
        return _living(self.round, self.reports, self.statuses)

    @cached_property
    def anyone_done(self) -> bool:
        if self.begins_again:
            return bool(self.finished)
        # A node that was taken for dead while it finished is believed, too: the work is done, with or without it.
        reported = any(report.intent is NodeIntent.FINISHED for report in self.of_this_job.values())
        return reported or bool(self.round.finished)

    @property
    def begins_again(self) -> bool:
        """Whether the next world begins all work again, also what was finished in this one."""
        return self.timeouts.begins_again and self.round.preemption is None

    @cached_property
    def finished(self) -> list[Member]:
        """The members that have finished."""
        return [m for m in self.round.members if self.statuses[m.node] is MemberStatus.DONE]

    @cached_property
    def unrecorded(self) -> list[int]:
        """The places of those that have finished and are not recorded yet."""
        known = self.round.finished_nodes
        places = {m.node: place for place, m in enumerate(self.round.members)} if self.finished else {}
        return [places[m.node] for m in self.finished if m.node not in known]

    @cached_property
    def gone(self) -> list[str]:
        """Those whose agents have ended as well: nobody misses them, unless all work begins again."""
        return sorted(m.node for m in self.finished if m.node in self.dead)

    @cached_property
    def unretired(self) -> list[int]:
        """The places of those that have finished and gone, and still have a vote."""
        gone = {node for node in self.gone if self.round.votes(node)}
        return [place for place, m in enumerate(self.round.members) if m.node in gone] if gone else []

    @cached_property
    def newcomers(self) -> list[Member]:
        return [] if self.round.finishing else _newcomers(self.round, self.reports, self.dead)

    @cached_property
    def leaving(self) -> list[str]:
        """Those that leave before the others; nobody does if all are to."""
        if self.round.preemption is not None:
            return []
        return [m.node for m in self.living if self.reports[m.node].leaving]

    @cached_property
    def all_heed(self) -> bool:
        """Whether the workers of all members have said that they stop after an agreed step, and save."""
        return bool(self.round.number and self.living) and all(self.reports[m.node].heeds for m in self.living)

    @cached_property
    def stay(self) -> list[Member]:
        return [m for m in self.living if m.node not in self.leaving]

    @cached_property
    def kept(self) -> list[Member]:
        """The members of this world that are in the next one, in order: those that stay, and who is to work again."""
        if not (self.begins_again and self.finished):
            return self.stay
        stay = {m.node: m for m in self.stay}
        heard = {m.node: self.reports[m.node].member for m in self.finished if m.node in self.reports}
        again = {m.node: heard.get(m.node, m) for m in self.finished if m.node not in self.gone}
        return [member for m in self.round.members if (member := stay.get(m.node) or again.get(m.node)) is not None]

    @cached_property
    def world(self) -> list[Member]:
        """The members of the next world, as it would be now."""
        room = self.round.settings.max_nodes - len(self.kept)
        return [*self.kept, *self.newcomers[: max(room, 0)]]

    @property
    def least(self) -> int:
        is_last = self.round.finishing and not self.begins_again
        return 1 if is_last else self.round.settings.min_nodes

    @property
    def few(self) -> bool:
        """Whether those that do not leave are too few for a world."""
        return len(self.living) + len(self.newcomers) - len(self.leaving) < self.least

    @property
    def enough(self) -> bool:
        return len(self.world) >= self.least

    @property
    def full(self) -> bool:
        return len(self.world) >= self.round.settings.max_nodes

    @cached_property
    def fault(self) -> WorkerFault | None:
        return _fault(self.round, self.reports)

    def seal(self, fault: WorkerFault | None = None) -> Round:
        heard = (self.reports[m.node] for m in self.world if m.node in self.reports)
        told = max((report.told for report in heard), default=0)
        return transitions.seal(
            self.round, self.world, self.store, self.missing, fault, after=told, begins_again=self.begins_again
        )

    def fall_short(self) -> Round:
        return transitions.fall_short(self.round, self.kept, self.missing, self.begins_again)

    def stop(self, preemption: Preemption) -> Round:
        """A last world of all that live, in which the workers save."""
        told = max(self.reports[m.node].told for m in self.living)
        last = transitions.seal(self.round, self.living, self.store, self.lost, _anywhere(self.fault), after=told)
        return transitions.preempted(last, preemption)


# --- the phases


def _a_node_failed(case: _Case) -> Decision | None:
    for node, report in sorted(case.of_this_job.items()):
        if report.intent is NodeIntent.FAILED:
            return Decision(f"{node} failed", transitions.close(case.round, report.reason))
    return None


def _somebody_is_unheard(case: _Case) -> Decision | None:
    unheard = [m.node for m in case.round.members if case.statuses[m.node] is MemberStatus.UNHEARD]
    return Decision(f"waiting to hear from {named(unheard)}", unheard=unheard[-1]) if unheard else None


def _the_work_is_done(case: _Case) -> Decision | None:
    round_, reports = case.round, case.of_this_job
    anyone_through = case.anyone_done or round_.finishing or any(report.through for report in reports.values())
    may_return = any(report.stuck and report.intent is NodeIntent.READY for report in reports.values())
    begun = bool(round_.number and _survivors(round_, reports, case.living))
    over = anyone_through and not begun
    over = over or (round_.phase is Phase.SEALED and _too_late(round_, reports, case.living))
    if case.begins_again:
        over = 0 < len(case.finished) == len(round_.members)
    if over and not may_return:
        return Decision("all have finished", transitions.close(round_, ""))
    recorded_at = _recorded_at(case)
    is_due = recorded_at is not None and case.now >= recorded_at
    if is_due or (case.anyone_done and not round_.finishing):
        reason = "a node has finished" if case.unrecorded or not round_.finishing else "a node has finished and gone"
        return Decision(reason, transitions.admit_nobody(round_, case.unrecorded, case.unretired))
    if over:  # nobody starts from scratch meanwhile
        return Decision("all have finished, except a worker that may come back")
    return None


def _the_job_is_told_to_leave(case: _Case) -> Decision | None:
    """All nodes leave, or so many that the others could not go on, and their workers can save."""
    if not case.leaving:
        case.timers.leaving_since = None
    if not case.leaving or case.round.finishing or not case.all_heed:
        return None
    told = [case.reports[node] for node in case.leaving]
    if case.stay and not (case.few or any(report.all_leave for report in told)):  # newcomers have nothing to go on from
        return _more_may_leave(case)
    preemption = Preemption(reason=told[0].reason, seconds=min(report.leave_s for report in told))
    reason = f"the job is told to leave ({preemption.reason})"

    def after(step: int) -> Decision:
        if step:
            stops = preemption.model_copy(update={"after": step})
            return Decision(reason, transitions.preempt(case.round, stops))
        if case.timeouts.barrier_s:
            return Decision(reason, case.stop(preemption))
        return _expels(case)  # its workers are started again in each world, with nothing to save

    gone = case.lost or _shrunk(case.round, case.reports, case.statuses)
    if case.round.phase is Phase.OPEN or gone or case.fault is not None or _broken(case.round, case.reports):
        return after(0)
    return _between_steps(case, reason, after, case.timeouts.stopping_s)


def _more_may_leave(case: _Case) -> Decision | None:
    """A scheduler that ends a job tells all of its nodes, one after the other."""
    if case.leader not in case.leaving and any(case.reports[m].hands_over == case.round.edition for m in case.leaving):
        return None  # the last leader has waited
    if case.timers.leaving_since is None:
        case.timers.leaving_since = case.now
    due = case.timers.leaving_since + case.timeouts.together_s
    if case.now >= due:
        return None
    return Decision(f"{named(case.leaving)} leaves; waiting whether others do", again_at=due)


def _leavers_cannot_be_waited_for(case: _Case) -> Decision | None:
    """Too few nodes would remain, the job is finishing, or there is no step that the leavers could end."""
    stepless = case.round.phase is Phase.OPEN or not case.timeouts.barrier_s
    if not (case.leaving and (stepless or case.round.finishing or case.few)):
        return None
    if case.leader in case.leaving and case.stay and (waits := _more_may_leave(case)):
        return waits
    return _expels(case)


def _another_leads_on(case: _Case) -> Decision | None:
    """Who seals a world hosts its store, so a leader that leaves hands over to a member that stays.

    It does so once: if each that is told to leave did at once, a job whose nodes are all told would have one leader
    after the other, and nobody would be heard meanwhile.
    """
    goes_on = (member_status.goes_on(case.round, case.reports[m.node]) for m in case.stay)
    if case.leader not in case.leaving or not any(goes_on):
        return None
    return _more_may_leave(case) or Decision(f"{case.leader} leaves: another leads on", hands_over=True)


def _expels(case: _Case) -> Decision:
    return Decision(f"{', '.join(case.leaving)} must leave without waiting for the others", expels_leavers=True)


def _a_finished_node_is_unheard(case: _Case) -> Decision | None:
    """Who has finished is needed again if all work begins again, and this leader cannot know yet whether it lives."""
    if not (case.begins_again and case.away):
        return None
    return Decision(f"waiting to hear from {named(sorted(case.away))}, finished", again_at=_recorded_at(case))


def _the_work_cannot_begin_again(case: _Case) -> Decision | None:
    """Somebody has finished and gone, and is missed now."""
    if not (case.begins_again and case.gone) or len(case.world) >= case.round.settings.min_nodes:
        return None
    if not (case.lost or _shrunk(case.round, case.reports, case.statuses) or _broken(case.round, case.reports)):
        return None
    least = count(case.round.settings.min_nodes, "node")
    have = "has" if len(case.gone) == 1 else "have"
    outcome = f"the work has to begin again on {least}, but {named(case.gone)} {have} finished and gone"
    return Decision(outcome, transitions.close(case.round, outcome))


def _there_is_no_world(case: _Case) -> Decision | None:
    """Are there enough nodes for a world, if the round is OPEN?"""
    round_, world = case.round, case.world
    if not case.enough:
        case.timers.enough_since = None
    if round_.phase is not Phase.OPEN:
        return None
    if not case.enough:
        reason = f"{len(world)} of at least {round_.settings.min_nodes} nodes are here"
        if case.lost and case.kept:
            # Nodes that live after all, and follow another that believes it leads, learn from this to come back.
            return Decision(reason, case.fall_short())
        return _nobody_comes(case, Decision(reason, crowd=0 if case.lost else round_.settings.min_nodes))
    if round_.number or case.full or round_.finishing:
        return Decision(f"{count(len(world), 'node')} suffice", case.seal())
    return _after_last_call(case)


def _nobody_comes(case: _Case, waits: Decision) -> Decision:
    """Before the members give up, their workers save what they have kept for so long."""
    if not (case.timeouts.gives_up_s and case.all_heed):
        return waits
    if case.timers.short_since is None:
        case.timers.short_since = case.now
    due = case.timers.short_since + case.timeouts.gives_up_s
    if case.now < due:
        return replace(waits, again_at=due)
    least = count(case.round.settings.min_nodes, "node")
    reason = f"fewer than {least} were there for {case.timeouts.gives_up_s:.0f} s"
    return Decision(reason, case.stop(Preemption(reason=reason, seconds=case.timeouts.save_s)))


def _somebody_is_gone(case: _Case) -> Decision | None:
    if not (case.lost or _shrunk(case.round, case.reports, case.statuses)):
        return None
    if case.enough:
        return Decision(_who_is_missing(case.stay, case.statuses), case.seal(_anywhere(case.fault)))
    if case.kept:
        return Decision("too few nodes are left", case.fall_short())
    return Decision("nobody is left in this world")


def _a_worker_has_a_fault(case: _Case) -> Decision | None:
    if case.fault is None or not case.enough:
        return None
    alone = len(case.world) == len(case.kept) and not ranks.grown(case.round, case.stay)
    if case.timers.fault_since is None:
        case.timers.fault_since = case.now
    due = case.timers.fault_since + case.fault.last_call_wait
    if case.now < due:
        return Decision("a worker has a fault; waiting for faults of other workers", again_at=due)
    return Decision("a worker has a fault", case.seal(case.fault if alone else _anywhere(case.fault)))


def _the_world_is_broken(case: _Case) -> Decision | None:
    timers = case.timers
    if not (_broken(case.round, case.reports) and case.enough):
        timers.broken_since = None
        return None
    if _is_given_up(case.round, case.reports):
        return Decision("nothing more is delivered in this world", case.seal())
    if timers.broken_since is None:
        timers.broken_since = case.now
    due = timers.broken_since + case.timeouts.broken_s
    if case.quiet and case.now < timers.broken_since + case.timeouts.quiet_s:
        timers.quiet_at = case.now  # the time that workers have ends before anybody is dead
    due = max(due, timers.quiet_at + QUIET_LOOK_S)
    if case.now >= due:
        return Decision("the world is broken, though nobody is lost", case.seal())
    return Decision("the world is broken; waiting for the loss that explains it", again_at=due)


def _somebody_leaves_or_comes(case: _Case) -> Decision | None:
    """Nobody was lost, so nobody needs to be interrupted."""
    if case.round.preemption is not None:
        return None  # the world saves; a worker that is ready only now comes too late
    if case.leaving:
        decision = Decision(f"{', '.join(case.leaving)} leaves", case.seal())
    elif len(case.world) == len(case.kept) and not ranks.grown(case.round, case.stay):
        return None
    elif case.full:
        decision = Decision("newcomers fill the world", case.seal())
    else:
        decision = _after_last_call(case)
    sealed = decision.proposal
    if sealed is None or not case.timeouts.barrier_s:
        return decision
    return _between_steps(
        case,
        decision.reason,
        lambda step: replace(decision, proposal=replace(sealed, leave_after=step)),
        case.timeouts.barrier_s,
    )


def _all_is_well(case: _Case) -> Decision:
    case.timers.enough_since = None
    recorded_at = _recorded_at(case)
    if not case.stay or recorded_at is None:
        return Decision("nothing to do", again_at=recorded_at)
    return Decision("nothing to do", again_at=recorded_at, unfinished=case.stay[-1].node, leader=case.leader)


_PHASES: tuple[Callable[[_Case], Decision | None], ...] = (
    _a_node_failed,
    _somebody_is_unheard,
    _the_work_is_done,
    _the_job_is_told_to_leave,
    _leavers_cannot_be_waited_for,
    _another_leads_on,
    _a_finished_node_is_unheard,
    _the_work_cannot_begin_again,
    _there_is_no_world,
    _somebody_is_gone,
    _a_worker_has_a_fault,
    _the_world_is_broken,
    _somebody_leaves_or_comes,
    _all_is_well,
)


# --- helpers of the phases


def _between_steps(case: _Case, reason: str, after: Callable[[int], Decision], patience_s: float) -> Decision:
    """Agree on a step first. `after` decides then, also if there is none (0) within `patience_s`."""
    round_, reports, timers = case.round, case.reports, case.timers
    answered = {m.node: reports[m.node].barrier_answer for m in round_.members}
    request = (round_.edition, timers.attempts)
    answers = [answer for answer in answered.values() if answer is not None and answer.request == request]
    last = max((answer.last for answer in answers), default=0)
    if len(answers) == len(answered) and (not last or all(answer.all for answer in answers)):
        alike = last - min((answer.first for answer in answers if answer.first), default=0) <= MOST_APART
        step_s = max(answer.step_s for answer in answers)
        agreed = last + int(case.timeouts.telling_s / step_s if step_s else 0) if last and alike else 0
        return replace(after(agreed), asks_barrier=True)
    if timers.barrier_since is None:
        timers.barrier_since = case.now
    due = timers.barrier_since + patience_s
    if case.now >= due:
        return after(0)
    silent = [node for node, answer in answered.items() if answer is None or answer.request != request]
    waited_for = silent or [node for node, answer in answered.items() if answer is not None and not answer.all]
    return Decision(f"{reason}; agreeing on a step", again_at=due, asks_barrier=True, unanswered=waited_for[-1])


def _recorded_at(case: _Case) -> float | None:
    """When to record those that have finished, or have gone since; None: there are none. Many finish together, and most
    jobs end then."""
    timers = case.timers
    if not (case.unrecorded or case.unretired):
        timers.finished_since = None
        return None
    if timers.finished_since is None:
        timers.finished_since = case.now
    is_first = not case.round.finishing
    leads = any(case.round.members[place].node == case.leader for place in case.unrecorded)  # and leads no more
    return case.now if is_first or leads else timers.finished_since + case.timeouts.together_s


def _after_last_call(case: _Case) -> Decision:
    if case.timers.enough_since is None:
        case.timers.enough_since = case.now
    due = case.timers.enough_since + case.timeouts.last_call_s
    if case.now >= due:
        return Decision(
            f"{count(len(case.world), 'node')} after the last call",
            case.seal(),
        )
    return Decision(f"{count(len(case.world), 'node')}, last call", again_at=due, crowd=case.round.settings.max_nodes)


def _living(round_: Round, reports: dict[str, Report], statuses: dict[str, MemberStatus]) -> list[Member]:
    staying = [(m, reports[m.node]) for m in round_.members if statuses[m.node] is MemberStatus.STAYS]
    # Who stays though it has finished is to work again.
    merged = [ranks.merge(m, r.member, () if r.intent is NodeIntent.FINISHED else r.done) for m, r in staying]
    return [m for m in merged if m.workers]


def _survivors(round_: Round, reports: dict[str, Report], stay: list[Member]) -> list[Member]:
    """Return the nodes with a worker that was there for the work, and so has its state.

    If nobody has shown that the workers work together, those are the nodes with a worker in this world.
    """
    if worked := max((report.through for report in reports.values()), default=0):
        return [m for m in stay if 0 < reports[m.node].since <= worked]
    placed = {m.life: m.workers for m in round_.members}
    return [m for m in stay if any(worker in placed[m.life] for worker in m.workers)]


def _newcomers(round_: Round, reports: dict[str, Report], dead: set[str]) -> list[Member]:
    """Return the newcomers whose workers can begin: one that came while others worked names none that is not ready."""
    placed = {m.life for m in round_.members}
    newcomers = [
        ranks.merge(report.member, report.member, report.done)
        for node, report in reports.items()
        if report.intent is NodeIntent.READY
        and not report.leaving
        and report.member.life not in placed
        and node not in dead
        and member_status.joins(report, round_)
    ]
    return [m for m in newcomers if m.workers]


def _too_late(round_: Round, reports: dict[str, Report], stay: list[Member]) -> bool:
    """Return whether only nodes that would have to start from scratch are left: the others were through before."""
    missed = any(report.missed_round == round_.number for report in reports.values())
    return missed and not _survivors(round_, reports, stay)


def _shrunk(round_: Round, reports: dict[str, Report], statuses: dict[str, MemberStatus]) -> bool:
    """Return whether a worker of this world is gone and has not just finished: a report still names those that have.

    If failures are recorded, a node that has finished may have failed workers, too.
    """
    return any(
        statuses[m.node] in (MemberStatus.WITHDRAWN, MemberStatus.LOST)
        or (statuses[m.node] is MemberStatus.STAYS and not _names_all(reports[m.node].member, m))
        or (statuses[m.node] is MemberStatus.DONE and not _has_done_all(m, reports.get(m.node)))
        for m in round_.members
    )


def _has_done_all(placed: Member, report: Report | None) -> bool:
    if report is None or report.intent is not NodeIntent.FINISHED:
        return True  # the record says that it has finished
    return set(placed.workers) <= {worker for worker in report.member.workers if worker.local_rank in report.done}


def _names_all(reported: Member, placed: Member) -> bool:
    return placed.workers == reported.workers or set(placed.workers) <= set(reported.workers)


def _broken(round_: Round, reports: dict[str, Report]) -> bool:
    """Return whether workers report this world as broken, or wait for one that exited and never asked for a world.

    If no worker of a script asks for its world, none waits for that one either.
    """
    placed = {m.life for m in round_.members}
    there = [report for report in reports.values() if report.member.life in placed]
    if any(report.broken_round == round_.number for report in there):
        return True
    return any(report.asks for report in there) and any(report.never_came == round_.number for report in there)


def _is_given_up(round_: Round, reports: dict[str, Report]) -> bool:
    """Return whether the world is broken only because the leader has begun to end it: no loss has to explain that."""
    placed = {m.life for m in round_.members}
    broken = [r for r in reports.values() if r.broken_round == round_.number and r.member.life in placed]
    return bool(broken) and all(report.promised == round_.edition for report in broken)


def _fault(round_: Round, reports: dict[str, Report]) -> WorkerFault | None:
    """Join the faults of this world's workers, with the outermost wrapper that one of them needs."""
    placed = {m.life for m in round_.members}
    faults = [
        r.fault
        for r in reports.values()
        if r.fault is not None and r.fault.round == round_.number and r.member.life in placed
    ]
    return joined(faults) if faults else None


def _anywhere(fault: WorkerFault | None) -> WorkerFault | None:
    """Drop the depth: if nodes were lost or joined as well, no wrapper is known in which all the others are."""
    return None if fault is None else fault.model_copy(update={"depth": 0})


def _who_is_missing(stay: list[Member], statuses: dict[str, MemberStatus]) -> str:
    told = [
        f"{node} {what.value}"
        for node, what in sorted(statuses.items())
        if what in (MemberStatus.LOST, MemberStatus.WITHDRAWN)
    ]
    return named(told) or f"a worker is gone, {sum(len(m.workers) for m in stay)} stay"


def named(nodes: list[str]) -> str:
    """Name them in one line, the first of many."""
    return ", ".join(nodes if len(nodes) <= 10 else [*nodes[:9], f"{len(nodes) - 9} more"])
