"""How the agents agree on the record, and which of two jobs of one name gives up."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Patch, mutant
from softrun.agent.consensus import replica
from softrun.agent.consensus.descent import Kin
from softrun.agent.consensus.replica import Peers, Replica
from softrun.agent.consensus.witness import Witness
from softrun.agent.core import shared_record
from softrun.agent.core.shared_record import SharedRecord
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.model import (
    Agreement,
    Ballot,
    LastWords,
    Record,
    Round,
    lineage,
)
from softrun.agent.rendezvous.liveness import Liveness


@mutant("OneHistory", "WorkIsNotBegunAgain")
def half_is_a_quorum() -> list[Patch]:
    def wrong(round_: Round, nodes: Collection[str], ended: Collection[str] = ()) -> bool:
        members = round_.by_node.keys() - ended
        return 2 * sum(node in nodes for node in members) >= len(members)

    return [(replica, "is_quorum", wrong)]


@mutant("OneHistory", "WorkIsNotBegunAgain", "Progress")
def needs_no_quorum() -> list[Patch]:
    return [(replica, "is_quorum", lambda round_, nodes, ended=(): bool(nodes))]


@mutant(test="test_replica_quorum.py::test_without_a_silent_member_a_quorum_is_needed")
def waits_for_a_quorum_only() -> list[Patch]:
    """A member that is in touch may lack a record that was agreed on."""

    def wrong(self: Replica, present: Collection[str], missing: dict[str, None]) -> bool:
        assert self.record is not None
        return replica.is_quorum(self.record, present) or all(self._peers.gone(node) for node in missing)

    return [(Replica, "_suffices", wrong)]


@mutant("OneHistory")
def decides_without_the_voters() -> list[Patch]:
    def wrong(self: Replica, round_: Round) -> list[do.Effect]:
        if self.record is not None:
            self.read(self._christened(round_, self.record))
        return self.show(None)

    return [(Replica, "propose", wrong)]


@mutant("OneHistory")
def goes_back_to_older_records() -> list[Patch]:
    right = Replica.kin

    def wrong(self: Replica, round_: Round) -> Kin:
        kin = right(self, round_)
        return Kin.NEWER if kin is Kin.OLDER else kin

    return [(Replica, "compare", lambda self, node, round_: None), (Replica, "kin", wrong)]


@mutant(test="test_replica_quorum.py::test_who_has_finished_has_a_vote_until_it_is_retired")
def does_not_count_the_finished_that_it_misses() -> list[Patch]:
    """They would have to be retired by the record first."""
    right = replica.is_quorum

    def wrong(round_: Round, nodes: Collection[str], ended: Collection[str] = ()) -> bool:
        return right(round_, nodes, {*ended, *(round_.finished_nodes - set(nodes))})

    return [(replica, "is_quorum", wrong)]


@mutant("OneHistory", job="with a witness")
def counts_a_silent_witness() -> list[Patch]:
    right = replica.is_quorum

    def wrong(round_: Round, nodes: Collection[str], ended: Collection[str] = ()) -> bool:
        return right(round_, {*nodes, round_.witness}, ended)

    return [(replica, "is_quorum", wrong)]


@mutant(test="test_witness.py::test_it_has_no_vote_on_the_record_that_names_it_or_another")
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


@mutant("Progress", "Told", job="torn in two")
def takes_the_newer_of_two_that_split() -> list[Patch]:
    right = Replica.kin

    def wrong(self: Replica, round_: Round) -> Kin:
        kin, own = right(self, round_), self.record
        if kin is not Kin.SPLIT or own is None:
            return kin
        return Kin.NEWER if round_.version > own.version else Kin.OLDER

    return [(Replica, "kin", wrong)]


@mutant("QuorumKept", job="torn in two")
def heeds_work_alone() -> list[Patch]:
    return [(shared_record, "the_quorum", lambda own, told: None)]


@mutant("Progress", job="torn in two")
def never_takes_a_death_back() -> list[Patch]:
    return [(Liveness, "mark_back", lambda *_: None)]


@mutant(job="agreed on")
def breaks_its_promises() -> list[Patch]:
    def wrong(self: Replica, node: str, message: Agreement) -> list[do.Effect]:
        self._promised = replica.NO_BALLOT
        return right(self, node, message)

    right = Replica.hear
    return [(Replica, "hear", wrong)]


@mutant(job="agreed on")
def asks_for_no_promises() -> list[Patch]:
    """Every member begins as only the first one may: with an Accept, in the lowest ballot."""

    def wrong(self: Replica, round_: Round) -> list[do.Effect]:
        if self.record is None or round_.name != self.record.name or self._attempt or not self._votes(self._node):
            return right(self, round_)
        self._attempt = self._new_attempt(0, round_)
        return self._ask_to_accept(self._attempt, round_)

    right = Replica.propose
    return [(Replica, "propose", wrong)]


@mutant(job="agreed on")
def asks_for_its_own_whatever_was_accepted() -> list[Patch]:
    return [(replica._Attempt, "bind", lambda *_: None)]


@mutant(test="test_replica.py::test_of_several_the_one_of_the_highest_ballot")
def asks_for_what_the_lowest_ballot_has_accepted() -> list[Patch]:
    def wrong(self: Any, accepted_in: Ballot, accepted: Round) -> None:
        if self.bound is None or accepted_in < self.bound[0]:
            self.bound = accepted_in, accepted

    return [(replica._Attempt, "bind", wrong)]


@mutant(test="test_replica.py::test_nobody_promises_anything_who_is_not_a_member")
def votes_where_it_is_no_member() -> list[Patch]:
    return [(replica, "_votes_in", lambda record, node: True)]


@mutant(test="test_replica_quorum.py::test_half_go_on_without_those_that_refuse_once_they_are_silent_as_well")
def half_go_on_without_those_that_refuse() -> list[Patch]:
    """A firewall may refuse for a host that goes on."""

    def wrong(self: Replica, node: str, peers: Peers) -> None:
        right(self, node, replace(peers, missed=peers.silent))

    right = Replica.__init__
    return [(Replica, "__init__", wrong)]


@mutant(test="test_election.py::test_one_that_has_refused_is_dialled_again_if_the_next_does_not_say_that_it_leads")
def takes_refusal_for_death() -> list[Patch]:
    return [(Liveness, "mark_refused", lambda self, node, now: self.mark_gone(node))]


@mutant(test="test_replica_quorum.py::test_that_nobody_listens_any_more_proves_nothing")
def takes_it_that_whoever_is_gone_had_accepted_nothing() -> list[Patch]:
    def wrong(self: Replica, present: Collection[str], missing: dict[str, None]) -> bool:
        heard = self._last_words
        self._last_words = {**{node: LastWords() for node in missing if self._peers.gone(node)}, **heard}
        suffices = right(self, present, missing)
        self._last_words = heard
        return suffices

    right = Replica._suffices
    return [(Replica, "_suffices", wrong)]


@mutant(test="test_shared_record.py::test_one_that_is_cut_off_joins_no_job_that_is_cut_off_as_well")
def joins_whatever_it_is_shown_when_cut_off() -> list[Patch]:
    def wrong(self: SharedRecord, told: Record, own: Round) -> bool:
        return right(self, replace(told, stands=True), own)

    right = SharedRecord._follows_rather
    return [(SharedRecord, "_follows_rather", wrong)]


# --- promises that nobody asked for, and those of witnesses


@mutant(job="agreed on")
def promises_although_it_has_accepted() -> list[Patch]:
    def wrong(self: Replica, node: str) -> Ballot | None:
        accepted, self._accepted = self._accepted, None
        promise = right(self, node)
        self._accepted = accepted
        return promise

    right = Replica.promise_ahead
    return [(Replica, "promise_ahead", wrong)]


@mutant(job="agreed on")
def keeps_no_promise_that_nobody_asked_for() -> list[Patch]:
    def wrong(self: Replica, node: str) -> Ballot | None:
        before = self._promised
        promise = right(self, node)
        self._promised = before
        return promise

    right = Replica.promise_ahead
    return [(Replica, "promise_ahead", wrong)]


@mutant(job="agreed on with witnesses")
def forgets_its_promises() -> list[Patch]:
    """A witness that was started again votes under its old name."""

    def wrong(self: Witness, node: str, message: Agreement) -> list[do.Effect]:
        answer = right(self, node, message)
        self._replica._promised = self._replica._accepted_in = replica.NO_BALLOT
        self._replica._accepted = None
        return answer

    right = Witness._asked
    return [(Witness, "_asked", wrong)]


@mutant(job="agreed on with witnesses")
def the_first_has_a_casting_vote_as_well() -> list[Patch]:
    def wrong(round_: Round, nodes: Collection[str], ended: Collection[str] = ()) -> bool:
        return any(right(each, nodes, ended) for each in (round_, replace(round_, witness="")))

    right = replica.is_quorum
    return [(replica, "is_quorum", wrong)]


@mutant(job="of four")
def forgets_what_the_dead_had_promised() -> list[Patch]:
    def wrong(self: Replica, node: str, words: LastWords) -> bool:
        return right(self, node, replace(words, promised=None))

    right = Replica.bury
    return [(Replica, "bury", wrong)]


@mutant(job="in every order of events")
def founds_when_it_is_left_out() -> list[Patch]:
    """A proposal of an agent without a vote begins a job, whatever it was made from."""

    def wrong(self: Replica, round_: Round) -> list[do.Effect]:
        record = self.record
        if record is None or self._votes(self._node):
            return right(self, round_)
        version = record.version + 1
        first = replace(round_, version=version, lineage=lineage(self._node, version), name=self._new_name(), past=())
        self.read(first)
        return [do.Say(None, Record(first, stands=True))]

    right = Replica.propose
    return [(Replica, "propose", wrong)]
