"""What the leader decides: who is in the next world, in which order, and when it begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Patch, mutant
from softrun.agent.core.engine import Engine
from softrun.agent.core.local_workers import LocalWorkers
from softrun.agent.core.stages import Stages
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.model import (
    Address,
    JobSettings,
    Member,
    NodeIntent,
    Phase,
    Report,
    Round,
)
from softrun.agent.rendezvous import decisions, member_status, ranks, transitions
from softrun.agent.rendezvous.convergence import Convergence
from softrun.agent.rendezvous.leader import Leader
from softrun.agent.rendezvous.liveness import Liveness
from softrun.agent.rendezvous.member_status import MemberStatus


@mutant("NoGhosts", "Progress", "WorkIsNotBegunAgain")
def seals_with_unheard_members() -> list[Patch]:
    right = member_status.status_of

    def wrong(*known: Any) -> MemberStatus:
        status_of = right(*known)
        return MemberStatus.STAYS if status_of is MemberStatus.UNHEARD else status_of

    decide = decisions.decide

    def decide_wrong(round_: Round, reports: dict[str, Report], *rest: Any, **named: Any) -> decisions.Decision:
        invented = {m.node: Report(m, NodeIntent.READY) for m in round_.members if m.node not in reports}
        return decide(round_, {**reports, **invented}, *rest, **named)

    return [(member_status, "status_of", wrong), (decisions, "decide", decide_wrong)]


@mutant("NoGhosts", "Progress")
def never_notices_silence() -> list[Patch]:
    return [(Liveness, "missed", lambda self, node, now: False)]


@mutant("SurvivorsFirst")
def puts_newcomers_first() -> list[Patch]:
    right = ranks.order
    return [(ranks, "order", lambda before, members: tuple(reversed(right(before, members))))]


@mutant("SurvivorsFirst")
def sorts_members_by_name() -> list[Patch]:
    return [(ranks, "order", lambda before, members: tuple(sorted(members, key=lambda m: m.node)))]


@mutant("SurvivorsFirst")
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


@mutant("Size")
def ignores_max_nodes() -> list[Patch]:
    return _decides_with(lambda settings: replace(settings, max_nodes=99))


@mutant("Size")
def counts_the_minimum_wrongly() -> list[Patch]:
    return _decides_with(lambda settings: replace(settings, min_nodes=max(1, settings.min_nodes - 1)))


@mutant("FinishedStaysFinished")
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


@mutant("NobodyMissesTheFinished", job="whose nodes finish and go")
def forgets_who_has_finished() -> list[Patch]:
    right = member_status.status_of

    def wrong(member: Member, report: Report | None, dead: bool, record: Round | None, *rest: Any) -> MemberStatus:
        return right(member, report, dead, None if record is None else replace(record, finished=()), *rest)

    return [(member_status, "status_of", wrong)]


@mutant("EndsAsTheModelSays", job="of any ending")
def never_retires_who_has_finished() -> list[Patch]:
    return [(decisions._Case, "unretired", ())]


@mutant(test="test_decisions.py::test_under_hard_a_new_leader_waits_to_hear_who_has_finished")
def takes_the_finished_for_living() -> list[Patch]:
    """Who begins to lead has their reports from before."""
    phases = tuple(phase for phase in decisions._PHASES if phase is not decisions._a_finished_node_is_unheard)
    return [(decisions, "_PHASES", phases)]


@mutant(test="test_decisions.py::test_under_hard_nothing_is_a_success_but_the_whole")
def hard_takes_a_part_for_the_whole() -> list[Patch]:
    return [(decisions._Case, "begins_again", False)]


@mutant("HardBeginsAllAgain")
def hard_runs_only_the_failed_again() -> list[Patch]:
    right = LocalWorkers.rewind
    return [(LocalWorkers, "rewind", lambda self, begins_again: right(self))]


@mutant("OneWorldPerRound")
def gives_a_new_world_the_old_number() -> list[Patch]:
    right = transitions.seal

    def wrong(round_: Round, *rest: Any, **named: Any) -> Round:
        return replace(right(round_, *rest, **named), number=max(1, round_.number))

    return [(transitions, "seal", wrong)]


@mutant("OnceEach")
def seals_the_same_world_again() -> list[Patch]:
    decide = decisions.decide

    def wrong(
        round_: Round, reports: dict[str, Report], dead: set[str], store: Address, *rest: Any
    ) -> decisions.Decision:
        decision = decide(round_, reports, dead, store, *rest)
        if decision.proposal is None and decision.reason == "nothing to do" and round_.phase is Phase.SEALED:
            again = transitions.seal(round_, list(round_.members), store, ())
            return decisions.Decision("once more", again)
        return decision

    return [(decisions, "decide", wrong)]


@mutant("Converges")
def never_waits_for_worlds_to_converge() -> list[Patch]:
    return [(Convergence, "pace", lambda self, round_, decision, now: decision)]


@mutant("WorkIsNotBegunAgain")
def begins_what_is_done_again() -> list[Patch]:
    return [
        (decisions, "_survivors", lambda round_, reports, stay: stay),
        (decisions, "_too_late", lambda round_, reports, stay: False),
        (Stages, "is_ending", lambda self: False),
    ]


@mutant(test="test_decisions.py::test_one_that_exits_before_it_asks_is_missed_where_others_ask")
def misses_nobody_who_never_asked() -> list[Patch]:
    def wrong(round_: Round, reports: dict[str, Report]) -> bool:
        return right(round_, {node: replace(report, never_came=0) for node, report in reports.items()})

    right = decisions._broken
    return [(decisions, "_broken", wrong)]


@mutant("Progress", "NobodyMeetsTheReplaced")
def evicted_node_does_not_rejoin() -> list[Patch]:
    return [(Engine, "_evicted", lambda *_: None)]


@mutant("WorkerStores")
def uses_a_worker_store_again() -> list[Patch]:
    right = Leader.lead

    def wrong(self: Leader, round_: Round, now: float) -> list[do.Effect]:
        if self.spare_store is None and round_.worker_store is not None and round_.number > 1:
            self.spare_store = Address(round_.worker_store.host, round_.worker_store.port)
        return right(self, round_, now)

    return [(Leader, "lead", wrong)]


@mutant("WorkerStores")
def lends_a_store_to_a_world_that_it_is_not_in() -> list[Patch]:
    return [
        (member_status, "goes_on", lambda *_: True),
        (Leader, "_by_a_member", lambda _self, _round, proposal: proposal),
    ]


@mutant("Progress")
def never_dials_anybody_again_who_refused() -> list[Patch]:
    return [(Liveness, "forgive_refusals", lambda *_: False)]
