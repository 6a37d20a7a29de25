"""The engine with one thing wrong. Each mutant must be caught by a checker, or the checkers are not worth their name.

A mutant is a context manager's worth of patched functions; its name says what it breaks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from simulation.checkers import BrokenPromiseError
from simulation.cluster import Cluster, Node
from softrun.agent.consensus import replica
from softrun.agent.consensus.descent import Kin
from softrun.agent.consensus.inquiry import Inquiry
from softrun.agent.consensus.leases import Leases
from softrun.agent.consensus.replica import Replica
from softrun.agent.consensus.search import Search
from softrun.agent.core import shared_record
from softrun.agent.core.allowance import NO_BOUND, PAST, Allowance
from softrun.agent.core.departures import Departures
from softrun.agent.core.engine import Engine
from softrun.agent.core.local_workers import LocalWorkers
from softrun.agent.core.stages import Stages
from softrun.agent.core.step_barrier import StepBarrier
from softrun.agent.core.worker_slot import State, WorkerSlot
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.model import (
    Address,
    Agreement,
    BarrierAnswer,
    Beat,
    JobSettings,
    Member,
    NodeIntent,
    Phase,
    Report,
    Round,
)
from softrun.agent.rendezvous import decisions, member_status, ranks, transitions
from softrun.agent.rendezvous.convergence import Convergence
from softrun.agent.rendezvous.election import Election
from softrun.agent.rendezvous.leader import Leader
from softrun.agent.rendezvous.lease_clock import LeaseClock
from softrun.agent.rendezvous.lease_ender import LeaseEnder
from softrun.agent.rendezvous.liveness import Liveness
from softrun.agent.rendezvous.member_status import MemberStatus
from softrun.runtime.events import Preemption

Patch = tuple[object, str, Any]
NEAR = Path(__file__).with_name("near.json")


@dataclass(frozen=True)
class Mutant:
    """`killers`: the promises whose checkers may be the first to see it."""

    name: str
    patches: Callable[[], list[Patch]]
    killers: tuple[str, ...]

    @property
    def near(self) -> int:
        """A seed to begin with, to save time: the last one that has killed it (`test_mutants` writes them anew)."""
        return int(json.loads(NEAR.read_text()).get(self.name, 0))

    def must_die(self, run: Callable[[int], object], most: int) -> None:
        """Run so many seeds at most until the right promise is broken. Raises AssertionError if none does it."""
        promises: set[str] = set()
        with self.alive():
            for seed in range(self.near, self.near + most):
                try:
                    run(seed)
                except BrokenPromiseError as broken:
                    promises.add(broken.promise)
                except AssertionError:
                    pass  # the engine's own; here the checkers are tested
                if promises & {*self.killers}:
                    return
        raise AssertionError(f"{self.name} was caught by {promises or 'nobody'}")

    @contextmanager
    def alive(self) -> Iterator[None]:
        patches = self.patches()
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
        for owner, name, value in patches:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)


def seals_with_unheard_members() -> list[Patch]:
    right = member_status.status_of

    def wrong(member: Member, report: Report | None, dead: bool, record: Round | None) -> MemberStatus:
        status_of = right(member, report, dead, record)
        return MemberStatus.STAYS if status_of is MemberStatus.UNHEARD else status_of

    decide = decisions.decide

    def decide_wrong(round_: Round, reports: dict[str, Report], *rest: Any, **named: Any) -> decisions.Decision:
        invented = {m.node: Report(m, NodeIntent.READY) for m in round_.members if m.node not in reports}
        return decide(round_, {**reports, **invented}, *rest, **named)

    return [(member_status, "status_of", wrong), (decisions, "decide", decide_wrong)]


def never_notices_silence() -> list[Patch]:
    return [(Liveness, "missed", lambda self, node, now: False)]


def puts_newcomers_first() -> list[Patch]:
    right = ranks.order
    return [(ranks, "order", lambda before, members: tuple(reversed(right(before, members))))]


def sorts_members_by_name() -> list[Patch]:
    return [(ranks, "order", lambda before, members: tuple(sorted(members, key=lambda m: m.node)))]


def heeds_places_before_survival() -> list[Patch]:
    right = ranks.order
    return [
        (ranks, "order", lambda before, members: tuple(sorted(right(before, members), key=lambda m: m.preferred_rank)))
    ]


def _decides_with(wrongly: Callable[[JobSettings], JobSettings]) -> list[Patch]:
    decide = decisions.decide

    def wrong(round_: Round, *rest: Any, **named: Any) -> decisions.Decision:
        decision = decide(replace(round_, settings=wrongly(round_.settings)), *rest, **named)
        if decision.proposal is None:
            return decision
        return replace(decision, proposal=replace(decision.proposal, settings=round_.settings))

    return [(decisions, "decide", wrong)]


def ignores_max_nodes() -> list[Patch]:
    return _decides_with(lambda settings: replace(settings, max_nodes=99))


def counts_the_minimum_wrongly() -> list[Patch]:
    return _decides_with(lambda settings: replace(settings, min_nodes=max(1, settings.min_nodes - 1)))


def charges_failures_that_a_loss_explains() -> list[Patch]:
    return [(Stages, "_is_excused", lambda self: False)]


def forgives_every_failure() -> list[Patch]:
    return [(Stages, "_is_excused", lambda self: True)]


def works_without_pause() -> list[Patch]:
    right = LocalWorkers.enter

    def wrong(self: LocalWorkers, *rest: Any) -> list[do.Effect]:
        return [e for e in right(self, *rest) if not (isinstance(e, do.Tell) and e.state.value == "PAUSED")]

    return [(LocalWorkers, "enter", wrong)]


def admits_newcomers_after_a_finish() -> list[Patch]:
    decide = decisions.decide

    def wrong(
        round_: Round, reports: dict[str, Report], dead: set[str], store: Address, *rest: Any
    ) -> decisions.Decision:
        decision = decide(round_, reports, dead, store, *rest)
        placed = {m.node for m in round_.members}
        more = [r.member for r in reports.values() if r.intent is NodeIntent.READY and r.member.node not in placed]
        room = round_.settings.max_nodes - len(round_.members)
        if decision.proposal is not None or not round_.finishing or round_.phase is not Phase.SEALED or not more[:room]:
            return decision
        return decisions.Decision("one more", transitions.seal(round_, [*round_.members, *more[:room]], store, ()))

    return [(decisions, "decide", wrong)]


def gives_a_new_world_the_old_number() -> list[Patch]:
    right = transitions.seal

    def wrong(round_: Round, *rest: Any, **named: Any) -> Round:
        return replace(right(round_, *rest, **named), number=max(1, round_.number))

    return [(transitions, "seal", wrong)]


def uses_a_worker_store_again() -> list[Patch]:
    right = Leader.lead

    def wrong(self: Leader, round_: Round, now: float) -> list[do.Effect]:
        if self.spare_store is None and round_.worker_store is not None and round_.number > 1:
            self.spare_store = Address(round_.worker_store.host, round_.worker_store.port)
        return right(self, round_, now)

    return [(Leader, "lead", wrong)]


def lends_a_store_to_a_world_that_it_is_not_in() -> list[Patch]:
    return [
        (member_status, "goes_on", lambda *_: True),
        (Leader, "_by_a_member", lambda _self, _round, proposal: proposal),
    ]


def evicted_node_does_not_rejoin() -> list[Patch]:
    return [(Engine, "_evicted", lambda *_: None)]


def stops_healthy_workers() -> list[Patch]:
    def wrong(self: Stages, now: float) -> None:
        self.restart(now, charged=False)

    return [(Stages, "halt", wrong)]


def leaves_workers_behind() -> list[Patch]:
    return [(LocalWorkers, "living", lambda self: False)]


def newcomers_take_over_a_living_job() -> list[Patch]:
    return [(Election, "_abandoned", lambda self, record, own: True)]


def starts_finished_workers_again() -> list[Patch]:
    right = LocalWorkers.exited

    def wrong(self: LocalWorkers, local_rank: int, launch: int, exitcode: int) -> do.Failure | None:
        failure = right(self, local_rank, launch, exitcode)
        slot = self._slots[local_rank]
        if slot.state is State.DONE and len(self._slots) > 1:
            self._slots[local_rank] = slot.renewed()
        return failure

    return [(LocalWorkers, "exited", wrong)]


def seals_the_same_world_again() -> list[Patch]:
    decide = decisions.decide

    def wrong(
        round_: Round,
        reports: dict[str, Report],
        dead: set[str],
        store: Address,
        timeouts: decisions.LeaderTimeouts,
        timers: decisions.LeaderTimers,
        now: float,
    ) -> decisions.Decision:
        decision = decide(round_, reports, dead, store, timeouts, timers, now)
        if decision.proposal is None and decision.reason == "nothing to do" and round_.phase is Phase.SEALED:
            again = transitions.seal(round_, list(round_.members), store, ())
            return decisions.Decision("once more", again)
        return decision

    return [(decisions, "decide", wrong)]


def asks_for_a_tick_at_once() -> list[Patch]:
    return [(Engine, "deadline", lambda self: None if self.stage.value == "ENDED" else self._now + 1e-3)]


def gives_workers_the_ranks_of_the_last_world() -> list[Patch]:
    right = ranks.places

    def wrong(round_: Round, *rest: Any) -> Any:
        return {
            worker: info.model_copy(update={"rank": max(0, info.rank - 1)})
            for worker, info in right(round_, *rest).items()
        }

    return [(ranks, "places", wrong)]


def works_on_when_its_lease_may_have_expired() -> list[Patch]:
    return [(Engine, "_fence", lambda self: self._lease.doubt(self._now))]


def counts_its_lease_from_the_answer() -> list[Patch]:
    right = LeaseClock.renewed

    def wrong(self: LeaseClock, until: float, lease_number: int, granted_s: float, now: float) -> bool:
        return right(self, until + granted_s, lease_number, granted_s, now)

    return [(LeaseClock, "renewed", wrong)]


def waits_for_silence_beside_leases() -> list[Patch]:
    return [(Liveness, "expire", lambda *_: None)]


def forgets_which_lease_expired() -> list[Patch]:
    return [(Liveness, "gone", lambda self, node: node in self._gone or node in self._expired)]


def holds_workers_a_step_too_late() -> list[Patch]:
    right = StepBarrier.answer

    def wrong(self: StepBarrier) -> BarrierAnswer | None:
        for held in self._held.values():
            held.sure = held.sure or held.told is not None
        return right(self)

    return [(StepBarrier, "answer", wrong)]


def agrees_on_the_least_step() -> list[Patch]:
    right = decisions._between_steps

    def wrong(case: Any, *rest: Any) -> decisions.Decision:
        decision = right(case, *rest)
        if decision.proposal is None or not decision.proposal.leave_after:
            return decision
        holds = [case.reports[m.node].barrier_answer for m in case.round.members]
        least = min(hold.first for hold in holds if hold is not None)
        return replace(decision, proposal=replace(decision.proposal, leave_after=least))

    return [(decisions, "_between_steps", wrong)]


def never_waits_for_worlds_to_converge() -> list[Patch]:
    return [(Convergence, "pace", lambda self, round_, decision, now: decision)]


def begins_what_is_done_again() -> list[Patch]:
    return [
        (decisions, "_survivors", lambda round_, reports, stay: stay),
        (decisions, "_too_late", lambda round_, reports, stay: False),
        (Stages, "is_ending", lambda self: False),
    ]


def misses_nobody_who_never_asked() -> list[Patch]:
    def wrong(round_: Round, reports: dict[str, Report]) -> bool:
        return right(round_, {node: replace(report, never_came=0) for node, report in reports.items()})

    right = decisions._broken
    return [(decisions, "_broken", wrong)]


def takes_hearing_for_being_heard() -> list[Patch]:
    """A lease counts from when it arrives, rather than from the beat that it answers."""

    def wrong(self: Leases, node: str, beat: Beat, now: float) -> bool:
        return right(self, node, replace(beat, echo=now if beat.echo else 0.0), now)

    right = Leases.heard
    return [(Leases, "heard", wrong)]


def grants_leases_without_having_one() -> list[Patch]:
    """A leader that others may have replaced tells its followers that nobody has."""

    def wrong(self: Leases, to: str, now: float, *, leads: bool, follows: bool, asks: bool) -> Beat:
        return replace(right(self, to, now, leads=False, follows=leads or follows, asks=asks), leads=leads)

    right = Leases.beat
    return [(Leases, "beat", wrong)]


def grants_leases_that_are_to_end() -> list[Patch]:
    return [(LeaseEnder, "is_ending", lambda self, node: False)]


def ends_leases_under_any_record() -> list[Patch]:
    """What it has asked for once it asks for again, whoever leads by now."""

    def advance(self: LeaseEnder, record: Round, leader: Member, now: float) -> list[do.EndLease]:
        self._version = record.version
        return right(self, record, leader, now)

    right = LeaseEnder.advance
    return [(LeaseEnder, "advance", advance)]


# --- of the agreement on the record


def its_clock_stops_while_its_host_sleeps() -> list[Patch]:
    def wake(self: Cluster, node: Node) -> None:
        slept_s = (self.now - node.stalled_at) * node.rate if node.stalled else 0.0
        node.offset -= slept_s
        if node.allowed is not None and node.allowed != NO_BOUND:  # its workers' clock has gone on
            node.allowed = do.Allow(node.allowed.hold_at - slept_s, max(node.allowed.leave_at - slept_s, PAST))
        before(self, node)

    before = Cluster.wake
    return [(Cluster, "wake", wake)]


def half_is_a_quorum() -> list[Patch]:
    def wrong(round_: Round, nodes: Collection[str], ended: Collection[str] = ()) -> bool:
        members = round_.by_node.keys() - ended
        return 2 * sum(node in nodes for node in members) >= len(members)

    return [(replica, "is_quorum", wrong)]


def needs_no_quorum() -> list[Patch]:
    return [(replica, "is_quorum", lambda round_, nodes, ended=(): bool(nodes))]


def waits_for_a_quorum_only() -> list[Patch]:
    """A member that is in touch may lack a record that was agreed on."""

    def wrong(self: Replica, present: Collection[str], missing: dict[str, None]) -> bool:
        assert self.record is not None
        return replica.is_quorum(self.record, present) or all(self._peers.gone(node) for node in missing)

    return [(Replica, "_suffices", wrong)]


def decides_without_the_voters() -> list[Patch]:
    def wrong(self: Replica, round_: Round) -> list[do.Effect]:
        if self.record is not None:
            self.read(self._christened(round_, self.record))
        return self.show(None)

    return [(Replica, "propose", wrong)]


def goes_back_to_older_records() -> list[Patch]:
    right = Replica.kin

    def wrong(self: Replica, round_: Round) -> Kin:
        kin = right(self, round_)
        return Kin.NEWER if kin is Kin.OLDER else kin

    return [(Replica, "compare", lambda self, node, round_: None), (Replica, "kin", wrong)]


# --- of the witness


def counts_a_silent_witness() -> list[Patch]:
    right = replica.is_quorum

    def wrong(round_: Round, nodes: Collection[str], ended: Collection[str] = ()) -> bool:
        return right(round_, {*nodes, round_.witness}, ended)

    return [(replica, "is_quorum", wrong)]


def a_new_witness_votes_as_the_old_one() -> list[Patch]:
    """It has forgotten what that one has promised."""
    votes, hear = replica._votes_in, Replica.hear

    def wrong_votes(record: Round, node: str) -> bool:
        return votes(record, node) or (record.witness != "" and node.startswith("w"))

    def wrong_hear(self: Replica, node: str, message: Agreement) -> list[do.Effect]:
        if self.record is not None and self.record.witness and node.startswith("w"):
            effects = hear(self, self.record.witness, message)
            return [replace(e, node=node) if isinstance(e, do.Say) and e.node is not None else e for e in effects]
        return hear(self, node, message)

    return [(replica, "_votes_in", wrong_votes), (Replica, "hear", wrong_hear)]


# --- of the leases in a store


def works_on_by_the_store_alone() -> list[Patch]:
    """An agent that others miss does not stop its workers, as long as its lease in the store stands."""

    def wrong(self: Allowance, until: float, lease: LeaseClock, entered_at: float | None) -> do.Allow:
        return right(self, until if not lease.leased else inf, lease, entered_at)

    right = Allowance._wanted
    return [(Allowance, "_wanted", wrong)]


def gives_time_to_whoever_was_left_behind() -> list[Patch]:
    def wrong(self: Engine) -> None:
        self._standing.left_behind = False
        right(self)

    right = Engine._allow_on
    return [(Engine, "_allow_on", wrong)]


def ends_leases_too_early() -> list[Patch]:
    def wrong(self: Liveness, node: str) -> float:
        return right(self, node) - (self.tolerance_s / 2 if self.leased else 0.0)

    right = Liveness._due_at
    return [(Liveness, "_due_at", wrong)]


# --- of jobs that are told to end


def saves_after_the_least_step() -> list[Patch]:
    right = decisions._between_steps

    def wrong(case: Any, reason: str, after: Any, patience_s: float) -> decisions.Decision:
        holds = [case.reports[m.node].barrier_answer for m in case.round.members]
        least = min((hold.first for hold in holds if hold is not None), default=0)
        return right(case, reason, lambda step: after(min(step, least)), patience_s)

    return [(decisions, "_between_steps", wrong)]


def forgets_that_all_leave() -> list[Patch]:
    return [(transitions, "_at_once", lambda preemption: None)]


def admits_newcomers_to_a_job_that_leaves() -> list[Patch]:
    def wrong(round_: Round, preemption: Preemption) -> Round:
        return replace(right(round_, preemption), finishing=round_.finishing)

    def wrong_world(round_: Round, preemption: Preemption) -> Round:
        return replace(right_world(round_, preemption), finishing=round_.finishing)

    right, right_world = transitions.preempt, transitions.preempted
    return [(transitions, "preempt", wrong), (transitions, "preempted", wrong_world)]


def never_stops_a_whole_job() -> list[Patch]:
    return [(decisions, "_PHASES", tuple(p for p in decisions._PHASES if p is not decisions._the_job_is_told_to_leave))]


def takes_a_leave_for_a_failure() -> list[Patch]:
    def wrong(self: WorkerSlot, exitcode: int) -> do.Failure | None:
        self.left = False
        return right(self, exitcode)

    right = WorkerSlot.exited
    return [(WorkerSlot, "exited", wrong)]


def takes_a_second_notice_for_a_second_signal() -> list[Patch]:
    """The others were told before, and so this node has heard of it already when it is told itself."""

    def wrong(self: Departures, signum: int, now: float) -> None:
        leaving = self._standing.departure
        if leaving is not None:
            leaving.told_at = -inf
        right(self, signum, now)

    right = Departures.signalled
    return [(Departures, "signalled", wrong)]


def sees_off_one_after_the_other() -> list[Patch]:
    return [(decisions, "_more_may_leave", lambda case: None)]


def goes_on_without_those_that_leave_with_all() -> list[Patch]:
    def wrong(self: Any) -> list[str]:
        return [m.node for m in self.living if self.reports[m.node].leaving]

    return [(decisions._Case, "leaving", property(wrong))]


def gives_no_time_to_save() -> list[Patch]:
    def wrong(self: Departures, preemption: Preemption, now: float) -> None:
        right(self, preemption.model_copy(update={"seconds": 0.01}), now)

    right = Departures.preempted
    return [(Departures, "preempted", wrong)]


def takes_silence_for_an_empty_endpoint() -> list[Patch]:
    not_found = Search.not_found

    def taken(self: Search, endpoint: Address, stranger: str, now: float, *, doubtful: bool = False) -> str:
        return not_found(self, endpoint, stranger, now)

    return [(Search, "not_found", taken)]


def looks_only_at_endpoints_before_its_own() -> list[Patch]:
    return [(Search, "_is_free", lambda *_: True)]


def founds_without_waiting_for_an_answer() -> list[Patch]:
    return [(Election, "is_jobless", lambda *_: True)]


def founds_without_asking_the_witness() -> list[Patch]:
    return [(Inquiry, "is_settled", lambda *_: True)]


def takes_the_newer_of_two_that_split() -> list[Patch]:
    right = Replica.kin

    def wrong(self: Replica, round_: Round) -> Kin:
        kin, own = right(self, round_), self.record
        if kin is not Kin.SPLIT or own is None:
            return kin
        return Kin.NEWER if round_.version > own.version else Kin.OLDER

    return [(Replica, "kin", wrong)]


def heeds_work_alone() -> list[Patch]:
    return [(shared_record, "the_quorum", lambda own, told: None)]


def founds_by_what_it_saw_before_it_gave_up() -> list[Patch]:
    return [(Search, "look_again", lambda *_: None)]


def founds_by_what_it_saw_before_it_was_away() -> list[Patch]:
    return [(Search, "forget", lambda *_: None)]


def never_takes_a_death_back() -> list[Patch]:
    return [(Liveness, "mark_back", lambda *_: None)]


SPLIT_MUTANTS = (
    Mutant("takes_the_newer_of_two_that_split", takes_the_newer_of_two_that_split, ("Progress", "Told")),
    Mutant("heeds_work_alone", heeds_work_alone, ("QuorumKept",)),
    Mutant("founds_by_what_it_saw_before_it_gave_up", founds_by_what_it_saw_before_it_gave_up, ("Progress",)),
    Mutant("never_takes_a_death_back", never_takes_a_death_back, ("Progress",)),
)
"""For jobs that become two of one name (`test_split`)."""

WITNESS_MUTANTS = (Mutant("counts_a_silent_witness", counts_a_silent_witness, ("OneHistory",)),)
"""For jobs that have one (`test_witness`)."""

FOUNDER_MUTANTS = (
    Mutant("takes_silence_for_an_empty_endpoint", takes_silence_for_an_empty_endpoint, ("FoundsAlone",)),
    Mutant("looks_only_at_endpoints_before_its_own", looks_only_at_endpoints_before_its_own, ("FoundsAlone",)),
    Mutant("founds_without_waiting_for_an_answer", founds_without_waiting_for_an_answer, ("FoundsAlone",)),
    Mutant("founds_by_what_it_saw_before_it_was_away", founds_by_what_it_saw_before_it_was_away, ("FoundsAlone",)),
    Mutant("founds_without_asking_the_witness", founds_without_asking_the_witness, ("FoundsAlone",)),
)
"""For jobs with several endpoints (`test_founders`)."""

RARE_MUTANTS = {
    ends_leases_under_any_record: "test_lease_ender.py::test_a_new_record_ends_the_suspicion",
    grants_leases_that_are_to_end: (
        "test_election.py::test_a_member_whose_lease_is_to_end_is_granted_none_by_its_leader"
    ),
    grants_leases_without_having_one: (
        "test_election.py::test_when_the_leaders_lease_stands_all_that_follow_get_theirs"
    ),
    a_new_witness_votes_as_the_old_one: "test_witness.py::test_it_has_no_vote_on_the_record_that_names_it_or_another",
    gives_time_to_whoever_was_left_behind: (
        "test_shared_record.py::test_who_is_taken_in_again_gets_no_time_for_workers_in_the_old_world"
    ),
    works_on_when_its_lease_may_have_expired: (
        "test_engine.py::test_workers_are_told_to_stop_before_the_lease_in_the_store_can_have_expired"
    ),
    waits_for_a_quorum_only: "test_replica_quorum.py::test_without_a_silent_member_a_quorum_is_needed",
}
"""What only one in ten thousand seeds shows, if any, and the test in `tests/agent` that does."""

MUTANTS = (
    Mutant("saves_after_the_least_step", saves_after_the_least_step, ("LeaveTogether",)),
    Mutant("forgets_that_all_leave", forgets_that_all_leave, ("OnceEach", "SavedTogether")),
    Mutant("admits_newcomers_to_a_job_that_leaves", admits_newcomers_to_a_job_that_leaves, ("Size", "SavedTogether")),
    Mutant("never_stops_a_whole_job", never_stops_a_whole_job, ("Progress",)),
    Mutant("takes_a_leave_for_a_failure", takes_a_leave_for_a_failure, ("Progress",)),
    Mutant("takes_a_second_notice_for_a_second_signal", takes_a_second_notice_for_a_second_signal, ("Progress",)),
    Mutant("sees_off_one_after_the_other", sees_off_one_after_the_other, ("Progress",)),
    Mutant("goes_on_without_those_that_leave_with_all", goes_on_without_those_that_leave_with_all, ("Progress",)),
    Mutant("gives_no_time_to_save", gives_no_time_to_save, ("SoftSparesTheHealthy", "Progress")),
    Mutant("works_on_by_the_store_alone", works_on_by_the_store_alone, ("NobodyMeetsTheReplaced",)),
    Mutant("ends_leases_too_early", ends_leases_too_early, ("NobodyMeetsTheReplaced",)),
    Mutant("takes_hearing_for_being_heard", takes_hearing_for_being_heard, ("NobodyMeetsTheReplaced",)),
    Mutant("its_clock_stops_while_its_host_sleeps", its_clock_stops_while_its_host_sleeps, ("NobodyMeetsTheReplaced",)),
    Mutant("half_is_a_quorum", half_is_a_quorum, ("OneHistory", "WorkIsNotBegunAgain")),
    Mutant("needs_no_quorum", needs_no_quorum, ("OneHistory", "WorkIsNotBegunAgain", "Progress")),
    Mutant("goes_back_to_older_records", goes_back_to_older_records, ("OneHistory",)),
    Mutant("decides_without_the_voters", decides_without_the_voters, ("OneHistory",)),
    Mutant("never_waits_for_worlds_to_converge", never_waits_for_worlds_to_converge, ("Converges",)),
    Mutant("misses_nobody_who_never_asked", misses_nobody_who_never_asked, ("Progress",)),
    Mutant("begins_what_is_done_again", begins_what_is_done_again, ("WorkIsNotBegunAgain",)),
    Mutant("holds_workers_a_step_too_late", holds_workers_a_step_too_late, ("LeaveTogether",)),
    Mutant("agrees_on_the_least_step", agrees_on_the_least_step, ("LeaveTogether",)),
    Mutant(
        "seals_with_unheard_members",
        seals_with_unheard_members,
        ("NoGhosts", "Progress", "WorkIsNotBegunAgain"),
    ),
    Mutant("never_notices_silence", never_notices_silence, ("NoGhosts", "Progress")),
    Mutant("puts_newcomers_first", puts_newcomers_first, ("SurvivorsFirst",)),
    Mutant("sorts_members_by_name", sorts_members_by_name, ("SurvivorsFirst",)),
    Mutant("heeds_places_before_survival", heeds_places_before_survival, ("SurvivorsFirst",)),
    Mutant("ignores_max_nodes", ignores_max_nodes, ("Size",)),
    Mutant("counts_the_minimum_wrongly", counts_the_minimum_wrongly, ("Size",)),
    Mutant("charges_failures_that_a_loss_explains", charges_failures_that_a_loss_explains, ("RestartsCountedOnce",)),
    Mutant("forgives_every_failure", forgives_every_failure, ("RestartsCountedOnce",)),
    Mutant("works_without_pause", works_without_pause, ("Sequence",)),
    Mutant("admits_newcomers_after_a_finish", admits_newcomers_after_a_finish, ("FinishedStaysFinished",)),
    Mutant("uses_a_worker_store_again", uses_a_worker_store_again, ("WorkerStores",)),
    Mutant("lends_a_store_to_a_world_that_it_is_not_in", lends_a_store_to_a_world_that_it_is_not_in, ("WorkerStores",)),
    Mutant("evicted_node_does_not_rejoin", evicted_node_does_not_rejoin, ("Progress", "NobodyMeetsTheReplaced")),
    Mutant("stops_healthy_workers", stops_healthy_workers, ("SoftSparesTheHealthy",)),
    Mutant("leaves_workers_behind", leaves_workers_behind, ("Ending", "Sequence")),
    Mutant(
        "newcomers_take_over_a_living_job", newcomers_take_over_a_living_job, ("Progress", "NobodyMeetsTheReplaced")
    ),
    Mutant("starts_finished_workers_again", starts_finished_workers_again, ("FinishedStaysFinished", "Progress")),
    Mutant("gives_a_new_world_the_old_number", gives_a_new_world_the_old_number, ("OneWorldPerRound",)),
    Mutant("seals_the_same_world_again", seals_the_same_world_again, ("OnceEach",)),
    Mutant("asks_for_a_tick_at_once", asks_for_a_tick_at_once, ("Patient",)),
    Mutant("counts_its_lease_from_the_answer", counts_its_lease_from_the_answer, ("NobodyMeetsTheReplaced",)),
    Mutant("waits_for_silence_beside_leases", waits_for_silence_beside_leases, ("NoGhosts", "Progress")),
    Mutant("forgets_which_lease_expired", forgets_which_lease_expired, ("Progress",)),
    Mutant("gives_workers_wrong_ranks", gives_workers_the_ranks_of_the_last_world, ("Ranks",)),
)
