"""What an agent does while it leads: it gathers the reports, calls `decisions.decide`, and proposes.

An agent that does not lead keeps the reports that reach it, in case it leads later.
"""

from __future__ import annotations

from dataclasses import replace

from softrun.agent.protocol import effects as do
from softrun.agent.protocol.effects import Effect
from softrun.agent.protocol.model import NO_REQUEST, Address, Member, NodeIntent, Phase, Report, Round
from softrun.agent.rendezvous import decision_cache, decisions, ranks, transitions
from softrun.agent.rendezvous.convergence import Convergence
from softrun.agent.rendezvous.decisions import Decision, LeaderTimeouts, LeaderTimers
from softrun.agent.rendezvous.liveness import Liveness


class Leader:
    """The reports that an agent has heard, and what it does with them while it leads.

    Times are the engine's, in seconds; `retry_s` is how long a proposal may be on its way before it is made again.
    """

    def __init__(self, node: str, liveness: Liveness, timeouts: LeaderTimeouts, retry_s: float) -> None:
        self._node = node
        self._liveness = liveness
        self._timeouts = timeouts
        self._retry_s = retry_s
        self.reports: dict[str, Report] = {}
        """The newest report of each node heard, in the order in which the nodes came in their present lives."""
        self.leading = False
        self.again_at: float | None = None
        """When `lead` must be called again without any news; None: with the next news."""
        self.spare_store: Address | None = None
        """A worker store of this agent that no world uses yet, if there is one."""
        self._witness = ""  # that the next record is to name
        # What the workers are to wait for, and the version of the record whose barrier has come to nothing. It is a
        # version because a node that does not know yet that a record is over must not go on in its world.
        self.barrier_request, self.release_version = NO_REQUEST, 0
        self.expels_leavers = False
        self._placed: tuple[Member, ...] = ()  # the members of the last record
        self._evicted: set[tuple[str, int]] = set()  # those of them that were taken for dead in this one
        self._store_asked = False
        self._used_store: Address | None = None
        self._timers = LeaderTimers()
        self._convergence = Convergence()
        self._proposed: tuple[Round, float] | None = None
        self._decision = Decision("")
        self._news = True  # since that decision, so it may not stand any more
        self._out_of_touch: set[str] = set()
        self._returned: set[str] = set()  # they had been silent, so they may have counted as dead
        self.absent: list[Member] = []
        """The members that it does not hear and that may live."""
        self._missed = False  # a report has named a missed world
        self._asks = self._never_came = False  # a worker asks for its worlds; a worker exited and never did

    def hear(self, report: Report) -> bool:
        """Keep a report. Returns whether it is the first of this node's life."""
        node = report.member.node
        if report.member.life in self._evicted and report.intent is not NodeIntent.FINISHED:
            # The node is about to learn that it was evicted, and to come back in another life. If it reports in this
            # life once more, it has not learned it.
            self._evicted.remove(report.member.life)
            return False
        before = self.reports.get(node)
        if before is not None and before.sequence > report.sequence:
            return False  # a newer report overtook it on another link
        fresh = before is None or before.member.life != report.member.life
        if fresh:
            self.reports.pop(node, None)
        self.reports[node] = report
        self._missed = self._missed or report.missed_round > 0
        self._asks = self._asks or report.asks
        self._never_came = self._never_came or report.never_came > 0
        missed = self._missed or (self._asks and self._never_came)
        known = node not in self._returned
        self._returned.discard(node)
        self._out_of_touch.discard(node)
        if not (known and decision_cache.stands(self._decision, before, report, len(self.reports), missed)):
            self._news = True
        return fresh

    def heard_again(self, node: str) -> None:
        """Note that `node` spoke after it had been silent for the tolerance: its next report is news in any case."""
        if node in self.reports:
            self._returned.add(node)

    def lose_touch(self, node: str) -> None:
        """Note that a link with `node` is gone: it may live, and report to another agent."""
        self._out_of_touch.add(node)

    def in_touch(self, node: str) -> bool:
        """Return whether `node` reports to this agent."""
        return node in self.reports and node not in self._out_of_touch

    def mark_gone(self, node: str) -> None:
        """Drop the report of a node that is gone, or may be. What a finished node has reported stays true."""
        report = self.reports.get(node)
        if report is not None and report.intent is not NodeIntent.FINISHED:
            del self.reports[node]
        self._news = True

    def adopt(self, round_: Round) -> list[Effect]:
        """Take in the new record. Returns the effects that close worker stores that no world needs."""
        effects: list[Effect] = []
        proposed = self._proposed[0] if self._proposed is not None else None
        self._timers = LeaderTimers()
        self._proposed = None
        self._news = True
        lost = set(round_.lost)
        if not (lost and round_.members == self._placed):  # else they were lost before this record
            self._evicted = {member.life for member in self._placed if member.node in lost} if lost else set()
        for node, _ in self._evicted:
            report = self.reports.get(node)
            if report is not None and report.member.life in self._evicted and report.intent is not NodeIntent.FINISHED:
                del self.reports[node]
        self._placed = round_.members
        for member in round_.members:
            report = self.reports.get(member.node)
            if report is not None and ranks.outdated(report.member, member):
                del self.reports[member.node]  # the record knows a later life
        if self._used_store is not None and (
            round_.phase is not Phase.SEALED or round_.worker_store != self._used_store
        ):
            effects.append(do.CloseWorkerStore(self._used_store.port))
            self._used_store = None
        named = round_.phase is Phase.SEALED and round_.worker_store is None and proposed == round_
        if self.spare_store is not None and (round_.worker_store == self.spare_store or named):  # a name leads to it
            self._used_store, self.spare_store = self.spare_store, None
        elif (
            self.spare_store is not None
            and proposed is not None
            and proposed.version < round_.version
            and proposed.worker_store == self.spare_store
        ):
            # A world that was over at once may have used it; nobody can tell.
            effects.append(do.CloseWorkerStore(self.spare_store.port))
            self.spare_store = None
        return effects

    def lead(self, round_: Round, now: float) -> list[Effect]:
        """Do what the leader of `round_` must do now. Returns the effects."""
        if not self.leading:
            self.leading = True
            self._news = True
            self._timers = LeaderTimers()
            for node in self._out_of_touch:  # their last report may have gone to another agent
                self.mark_gone(node)
        asked = self.again_at is not None and now >= self.again_at
        if not (self._news or asked or self._liveness.due(now)):
            return []  # most beats: nothing has changed
        if self.spare_store is None:
            return self._ask_for_store()
        if self._proposed is not None and now < self._proposed[1] + self._retry_s:
            self.again_at = self._proposed[1] + self._retry_s
            return []
        self._news = False
        for member in round_.members:
            if member.node != self._node:
                self._liveness.watch(member.node, now)
        # Members must show this agent that they live. Nobody watches newcomers, so a silent one may be long gone.
        dead = {m.node for m in round_.members if self._liveness.dead(m.node, now)}
        dead |= {node for node in self.reports if node not in dead and self._liveness.silent(node, now)} - {
            m.node for m in round_.members
        }
        dead.discard(self._node)
        self.absent = [
            m
            for m in round_.members
            if (m.node in dead or m.node not in self.reports) and not self._liveness.gone(m.node)
        ]
        decision = decisions.decide(round_, self.reports, dead, self.spare_store, self._timeouts, self._timers, now)
        if self._timeouts.converges:
            decision = self._convergence.pace(round_, decision, now)
        self.again_at = decision.again_at
        self.expels_leavers = decision.expels_leavers
        if decision.asks_barrier:
            self.barrier_request, self.release_version = (round_.version, self._timers.attempts), 0
        elif self._proposed is None and not decision.unheard:  # else the world may still be sealed as agreed
            self._timers.barrier_since = None
            if any(
                r.barrier_answer is not None and r.barrier_answer.request[0] == round_.version
                for r in self.reports.values()
            ):
                self._timers.attempts += self.release_version != round_.version
                self.barrier_request, self.release_version = NO_REQUEST, round_.version
        effects: list[Effect] = []
        before, self._decision = self._decision, decision
        if decision.reason != before.reason:
            effects.append(do.Note(f"as leader: {decision.reason}", detail=True))
        if decision.proposal is not None:
            effects += self.propose(self._by_a_member(round_, decision.proposal), now)
        elif decision.is_idle and round_.witness != self._witness:
            effects += self.propose(transitions.attest(round_, self._witness), now)
        return effects

    def _by_a_member(self, round_: Round, proposal: Round) -> Round:
        """Return `proposal`, or a meeting of its members if this agent is not one of them: they seal their world then.

        The agent that seals a world hosts its store, so it must be a member.
        """
        if proposal.phase is not Phase.SEALED or any(m.node == self._node for m in proposal.members):
            return proposal
        meeting = transitions.fall_short(round_, list(proposal.members), proposal.lost)
        return replace(meeting, stepless=proposal.stepless)  # else nobody would count such worlds

    def proposed(self, round_: Round) -> bool:
        """Return whether this agent made this record itself. Then the record says nothing new about the living."""
        return self._proposed is not None and self._proposed[0] == round_

    def put_off(self, now: float) -> None:
        """The proposal cannot be decided now: with the next news, or after a while, there is another."""
        self._proposed = None
        self.again_at = now + self._retry_s

    def reconsider(self) -> None:
        """Decide again at once: what a proposal waited for may be there."""
        self._news = True

    def attest(self, witness: str) -> None:
        """Name this witness in the next record; "": none. If nothing else is to change, there is a record for that."""
        self._news = self._news or witness != self._witness
        self._witness = witness

    def worked_in(self, number: int) -> None:
        """Note that a step was completed in world `number`."""
        self._news = self._convergence.worked_in(number) or self._news

    def stand_down(self) -> None:
        """Stop leading: another agent leads, or this one must not for now."""
        self.leading = self.expels_leavers = False
        self.absent = []
        self.again_at = None

    def propose(self, round_: Round, now: float) -> list[Effect]:
        """Return the effect that proposes `round_`, or none if the same proposal may still be on its way."""
        if round_.witness != self._witness:
            round_ = replace(round_, witness=self._witness)
        if self._proposed is not None and self._proposed[0] == round_ and now < self._proposed[1] + self._retry_s:
            return []
        self._proposed = (round_, now)
        self.again_at = now + self._retry_s
        return [do.Propose(round_)]

    def _ask_for_store(self) -> list[Effect]:
        if self._store_asked:
            return []
        self._store_asked = True
        return [do.OpenWorkerStore()]

    def lend(self, store: Address) -> None:
        """Take the worker store that OpenWorkerStore asked for as the spare one."""
        self.spare_store, self._store_asked = store, False
        self._news = True
