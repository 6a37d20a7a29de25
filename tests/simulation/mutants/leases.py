"""Until when an agent goes on without the others, and whom it calls dead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

from simulation.cluster import Cluster, Node
from simulation.mutants.mutant import Patch, mutant
from softrun.agent.consensus import leases
from softrun.agent.consensus.leases import Leases
from softrun.agent.consensus.replica import Replica
from softrun.agent.core.allowance import NO_BOUND, Allowance
from softrun.agent.core.engine import Engine
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.model import (
    Beat,
    Member,
    Round,
)
from softrun.agent.rendezvous.election import Election
from softrun.agent.rendezvous.lease_clock import LeaseClock
from softrun.agent.rendezvous.lease_ender import LeaseEnder
from softrun.agent.rendezvous.liveness import Liveness


@mutant("NobodyMeetsTheReplaced")
def takes_hearing_for_being_heard() -> list[Patch]:
    """A lease counts from when it arrives, rather than from the beat that it answers."""

    def wrong(self: Leases, node: str, beat: Beat, now: float) -> bool:
        return right(self, node, replace(beat, echo=now if beat.echo else 0.0), now)

    right = Leases.heard
    return [(Leases, "heard", wrong)]


@mutant(test="test_election.py::test_when_the_leaders_lease_stands_all_that_follow_get_theirs")
def grants_leases_without_having_one() -> list[Patch]:
    """A leader that others may have replaced tells its followers that nobody has."""

    def wrong(self: Leases, to: str, now: float, *, leads: bool, follows: bool, **rest: bool) -> Beat:
        return replace(right(self, to, now, leads=False, follows=leads or follows, **rest), leads=leads)

    right = Leases.beat
    return [(Leases, "beat", wrong)]


@mutant("NobodyMeetsTheReplaced", job="with several endpoints")
def its_clock_stops_while_its_host_sleeps() -> list[Patch]:
    def wake(self: Cluster, node: Node) -> None:
        if node.is_suspended:
            node.offset -= (self.now - node.stalled_at) * node.rate
        before(self, node)

    before = Cluster.wake
    return [(Cluster, "wake", wake)]


@mutant(test="test_shared_record.py::test_who_is_taken_in_again_gets_no_time_for_workers_in_the_old_world")
def gives_time_to_whoever_was_left_behind() -> list[Patch]:
    def wrong(self: Engine) -> None:
        self._standing.left_behind = False
        right(self)

    right = Engine._allow_on
    return [(Engine, "_allow_on", wrong)]


@mutant(test="test_engine.py::test_workers_are_told_to_stop_before_the_lease_in_the_store_can_have_expired")
def works_on_when_its_lease_may_have_expired() -> list[Patch]:
    return [(Engine, "_fence", lambda self: self._lease.doubt(self._now))]


@mutant("NobodyMeetsTheReplaced")
def counts_its_lease_from_the_answer() -> list[Patch]:
    right = LeaseClock.renewed

    def wrong(self: LeaseClock, until: float, lease_number: int, granted_s: float, now: float) -> bool:
        return right(self, until + granted_s, lease_number, granted_s, now)

    return [(LeaseClock, "renewed", wrong)]


@mutant("NoGhosts", "Progress")
def waits_for_silence_beside_leases() -> list[Patch]:
    return [(Liveness, "expire", lambda *_: None)]


@mutant("Progress")
def forgets_which_lease_expired() -> list[Patch]:
    return [(Liveness, "gone", lambda self, node: node in self._gone or node in self._expired)]


@mutant("NobodyMeetsTheReplaced")
def works_on_by_the_store_alone() -> list[Patch]:
    """An agent that others miss does not stop its workers, as long as its lease in the store stands."""

    def wrong(self: Allowance, until: float, lease: LeaseClock, entered_at: float | None) -> do.Allow:
        return right(self, until if not lease.leased else inf, lease, entered_at)

    right = Allowance._wanted
    return [(Allowance, "_wanted", wrong)]


@mutant("NobodyMeetsTheReplaced")
def ends_leases_too_early() -> list[Patch]:
    def wrong(self: Liveness, node: str) -> float:
        return right(self, node) - (self.tolerance_s / 2 if self.leased else 0.0)

    right = Liveness._due_at
    return [(Liveness, "_due_at", wrong)]


@mutant(test="test_election.py::test_a_member_whose_lease_is_to_end_is_granted_none_by_its_leader")
def grants_leases_that_are_to_end() -> list[Patch]:
    return [(LeaseEnder, "is_ending", lambda self, node: False)]


@mutant(test="test_lease_ender.py::test_a_new_record_ends_the_suspicion")
def ends_leases_under_any_record() -> list[Patch]:
    """What it has asked for once it asks for again, whoever leads by now."""

    def advance(self: LeaseEnder, record: Round, leader: Member, now: float) -> list[do.EndLease]:
        self._version = record.version
        return right(self, record, leader, now)

    right = LeaseEnder.advance
    return [(LeaseEnder, "advance", advance)]


@mutant(test="test_leases.py::test_it_is_shorter_than_what_was_granted_because_another_clock_may_run_faster")
def knows_no_drift() -> list[Patch]:
    return [(leases, "DRIFT", 0.0)]


@mutant(test="test_leases.py::test_nobody_is_believed_who_promises_more_than_anybody_does")
def believes_in_every_promise() -> list[Patch]:
    return [(leases, "MOST_TOLERANCES", inf)]


@mutant(test="test_leases.py::test_who_has_accepted_to_be_left_behind_trusts_no_lease")
def trusts_leases_when_left_behind() -> list[Patch]:
    return [(Leases, "until", property(lambda self: inf if self._members == (self._node,) else self._until))]


@mutant(test="test_leases.py::test_a_lease_counts_from_the_beat_that_is_returned_whenever_the_answer_comes")
def works_on_without_any_lease() -> list[Patch]:
    def wrong(self: Leases) -> float:
        until: float = right(self)
        return inf if until == -inf else until

    right = Leases.until.fget  # type: ignore[attr-defined]
    return [(Leases, "until", property(wrong))]


@mutant(test="test_leases.py::test_members_that_join_end_each_older_lease")
def keeps_its_lease_when_others_join() -> list[Patch]:
    def wrong(self: Leases, members: tuple[str, ...], *rest: Any, **named: Any) -> bool:
        self._members = members
        return right(self, members, *rest, **named)

    right = Leases.join
    return [(Leases, "join", wrong)]


@mutant(test="test_leases.py::test_nor_who_was_promised_it_when_beats_came_late")
def calls_dead_whom_it_owes_time() -> list[Patch]:
    return [(Leases, "owed", lambda self, node: -inf)]


@mutant(test="test_leases.py::test_what_a_leader_was_promised_is_owed_to_all_once_it_has_died")
def owes_nothing_once_its_leader_has_died() -> list[Patch]:
    return [(Leases, "owed", lambda self, node: self._owed.get(node, -inf))]


@mutant(test="test_replica.py::test_who_proposed_it_knows_whether_all_of_its_members_have_accepted_it")
def has_a_lease_for_what_it_proposed() -> list[Patch]:
    """Although a member has not accepted it, and may have called the leader dead before."""

    def wrong(self: Replica, round_: Round, since: float = -inf, *, accepted_by_all: bool = False) -> None:
        right(self, round_, since, accepted_by_all=accepted_by_all or since != -inf)

    right = Replica._adopt
    return [(Replica, "_adopt", wrong)]


@mutant(test="test_leases.py::test_what_the_last_leader_had_granted_it_passes_on_unless_that_only_refused")
def passes_on_the_lease_of_one_that_refused() -> list[Patch]:
    def wrong(self: Leases, *rest: Any, refused: bool = False, **named: Any) -> Beat:
        return right(self, *rest, **named)

    right = Leases.beat
    return [(Leases, "beat", wrong)]


@mutant(test="test_leader.py::test_one_that_only_refuses_may_deliver_a_verdict_until_it_is_missed_as_well")
def takes_a_refusal_for_the_end_of_a_lease() -> list[Patch]:
    return [(Liveness, "only_refused", lambda *_: False)]


@mutant(test="test_leases.py::test_one_that_died_later_is_not")
def excuses_whoever_is_dead() -> list[Patch]:
    """Also who died after this agent's lease had ended, and so may have left it behind before."""
    return [(Leases, "part", lambda self, node, now: self._parted.add(node))]


@mutant(test="test_leases.py::test_a_leader_has_a_lease_once_all_members_have_granted_one")
def leads_by_the_leases_that_it_has() -> list[Patch]:
    return [(Leases, "_is_excused", lambda self, node, gone: node == self._node or node not in self._granted)]


@mutant(job="in every order of events")
def grants_time_to_whom_it_leaves_behind() -> list[Patch]:
    """A lease is granted while a record is under way that leaves its holder behind."""
    return [(Replica, "left_behind_at", lambda _self, _node: None)]


@mutant(test="test_leases.py::test_it_is_renewed_while_it_stands_but_not_at_every_beat")
def renews_its_lease_when_half_of_it_is_over() -> list[Patch]:
    """So its followers' are as short."""

    def lead(self: Leases, gone: Callable[[str], bool], now: float) -> bool:
        return self._leads_until - now <= self._promise_s() / 2 and right(self, gone, now)

    right = Leases.lead
    return [(Leases, "lead", lead)]


@mutant("NobodyWaits", job="where nothing happens")
def gives_its_workers_no_time_unless_it_is_half_a_beat_more() -> list[Patch]:
    def advance(self: Allowance, until: float, lease: LeaseClock, entered_at: float | None = None) -> list[do.Allow]:
        before = self._allowed
        effects = right(self, until, lease, entered_at)
        if effects and before != NO_BOUND and 0 < effects[0].hold_at - before.hold_at < self._tolerance_s / 10:
            self._allowed = before
            return []
        return effects

    right = Allowance.advance
    return [(Allowance, "advance", advance)]


@mutant("NobodyWaits", job="where nothing happens")
def beats_no_more_often_than_a_node_may_be_silent() -> list[Patch]:
    """Three beats in a tolerance, as many as torch's own setting has."""

    def later(self: Election) -> list[do.Effect]:
        beat_at = self._beat_at
        effects = right(self)
        if self._beat_at != beat_at:
            self._beat_at += self._interval_s * 2 / 3
        return effects

    right = Election._beat
    return [(Election, "_beat", later)]
