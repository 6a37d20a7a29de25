"""What an agent does while it leads: it gathers the reports, calls `decisions.decide`, and proposes.

An agent that does not lead keeps the reports that reach it, in case it leads later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from math import inf

from softrun.agent.protocol import effects as do
from softrun.agent.protocol.effects import Effect
from softrun.agent.protocol.live import Verdict
from softrun.agent.protocol.model import NO_REQUEST, Address, Member, NodeIntent, Phase, Report, Round
from softrun.agent.rendezvous import decision_cache, decisions, member_status, promises, ranks, transitions
from softrun.agent.rendezvous.convergence import Convergence
from softrun.agent.rendezvous.decisions import Decision, LeaderTimeouts, LeaderTimers
from softrun.agent.rendezvous.liveness import Liveness

MOST_MADE = 16
"""How many of its proposals for one record a leader remembers."""


class Leader:
    """The reports that an agent has heard, and what it does with them while it leads.

    Times are the engine's, in seconds; `retry_s` is how long a proposal may be on its way before it is made again.
    `agrees`: the agents keep the record, so a proposal that was refused may have been accepted by some of them.
    """

    def __init__(
        self, node: str, liveness: Liveness, timeouts: LeaderTimeouts, retry_s: float, agrees: bool = False
    ) -> None:
        self._node = node
        self._agrees = agrees
        self._liveness = liveness
        self._timeouts = timeouts
        self._retry_s = retry_s
        self.reports: dict[str, Report] = {}
        """The newest report of each node heard, in the order in which the nodes came in their present lives."""
        self.leading = False
        self._leads_since = -inf
        self.again_at: float | None = None
        """When `lead` must be called again without any news; None: with the next news."""
        self.spare_store: Address | None = None
        """A worker store of this agent that no world uses yet, if there is one."""
        self._witness = ""  # that the next record is to name
        # What the workers are to wait for, and the edition of the record whose barrier has come to nothing. It is an
        # edition because a node that does not know yet that a record is over must not go on in its world.
        self.barrier_request, self.release_edition = NO_REQUEST, 0
        self.expels_leavers = False
        self.hands_over = 0
        """The edition of the record that another is to lead on, since this node leaves."""
        self.asks_promise = 0
        """The edition of the record that is to end, if the verdicts of its world have to be gathered first."""
        self._record: Round | None = None  # the last one
        self._evicted: set[tuple[str, int]] = set()  # lives that were taken for dead, and may not know it yet
        self._store_asked = False
        self._used_store: Address | None = None
        self._timers = LeaderTimers()
        self._convergence = Convergence()
        self._proposed: tuple[Round, float] | None = None
        self._made: deque[Round] = deque(maxlen=MOST_MADE)  # its proposals for the next record, the last one included
        self._withdrawn = False  # that proposal was refused before anybody was asked to accept it
        self._decision = Decision("")
        self._news = True  # since that decision, so it may not stand any more
        self._out_of_touch: set[str] = set()
        self._returned: set[str] = set()  # they had been silent, so they may have counted as dead
        self.absent: list[Member] = []
        """The members that it does not hear and that may live."""
        self._owing: set[str] = set()  # those that have yet to promise
        self._due: tuple[Verdict, ...] = ()  # if durable, what the next record is to take in
        self._missed = False  # a report has named a missed world
        self._asks = self._never_came = False  # a worker asks for its worlds; a worker exited and never did

    def hear(self, report: Report, behind: bool = False) -> bool:
        """Keep a report. Returns whether it is the first of this node's life.

        `behind`: the node does not know the newest record yet.
        """
        node = report.member.node
        if report.member.life in self._evicted and report.intent is not NodeIntent.FINISHED:
            # The node is about to learn that it was evicted, and to come back in another life. If it reports in this
            # life once more, it has not learned it.
            if not behind:
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
        if report.promised and report.promised == self.asks_promise:
            self._owing.discard(node)
            self._news = self._news or not self._owing
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
        """Drop the report of a node that is gone, or may be. What one has reported that has finished, or has failed for
        all, stays true."""
        report = self.reports.get(node)
        if report is not None and report.intent not in (NodeIntent.FINISHED, NodeIntent.FAILED):
            del self.reports[node]
        self._news = True

    def adopt(self, round_: Round, now: float) -> list[Effect]:
        """Take in the new record, at this time. Returns the effects that close worker stores that no world needs."""
        before, self._record = self._record, round_
        proposed, self._proposed = (self._proposed[0] if self._proposed is not None else None), None
        self._made.clear()
        self._news = True
        if not round_.says_more_than(before):
            return []
        effects: list[Effect] = []
        # A meeting that has lost another member, or its leader, has been short since it began.
        short_since = self._timers.short_since if self._timers.short_since is not None else now
        self._timers = LeaderTimers(short_since=short_since if round_.phase is Phase.OPEN else None)
        self.asks_promise = 0
        lost, placed = set(round_.lost), before.members if before is not None else ()
        if round_.members != placed:  # else they were lost before this record
            self._evicted |= {member.life for member in placed if member.node in lost}
        self._evicted -= {member.life for member in round_.members}
        for node, _ in self._evicted:
            report = self.reports.get(node)
            if report is not None and report.member.life in self._evicted and report.intent is not NodeIntent.FINISHED:
                del self.reports[node]
        for member in round_.members:
            report = self.reports.get(member.node)
            # The record knows a later life; or it was said in another job, which one of both has left since.
            if report is not None and (
                ranks.outdated(report.member, member) or member_status.is_elsewhere(report, round_)
            ):
                del self.reports[member.node]
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
            self.leading, self._leads_since = True, now
            self._news = True
            self._timers = LeaderTimers(short_since=self._timers.short_since)
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
        quiet = any(self._liveness.quiet(m.node, now) for m in round_.members if m.node not in dead)
        # What they have reported is kept, and does not show that they are still there.
        finished = round_.finished_nodes - dead - {self._node}
        away = {node for node in finished if not self._liveness.heard_since(node, self._leads_since)}
        decision = decisions.decide(
            round_, self.reports, dead, self.spare_store, self._timeouts, self._timers, now, quiet, self._node, away
        )
        seals = decision.proposal is not None
        if self._timeouts.converges:
            decision = self._convergence.pace(round_, decision, now)
        decision = self._with_verdicts(round_, decision, dead, now)
        self.again_at = decision.again_at
        self.expels_leavers = decision.expels_leavers
        self.hands_over = round_.edition if decision.hands_over else self.hands_over
        if decision.asks_barrier:
            self.barrier_request, self.release_edition = (round_.edition, self._timers.attempts), 0
        elif not (self._may_be_decided or decision.unheard or seals):  # else it may be sealed as agreed
            self._timers.barrier_since = None
            if any(
                r.barrier_answer is not None and r.barrier_answer.request[0] == round_.edition
                for r in self.reports.values()
            ):
                self._timers.attempts += self.release_edition != round_.edition
                self.barrier_request, self.release_edition = NO_REQUEST, round_.edition
        effects: list[Effect] = []
        before, self._decision = self._decision, decision
        if decision.reason != before.reason:
            effects.append(do.Note(f"as leader: {decision.reason}", detail=True))
        if decision.proposal is not None:
            effects += self.propose(self._by_a_member(round_, decision.proposal), now)
        elif self._agrees and self._may_be_decided and self._proposed is not None:
            effects += self.propose(self._proposed[0], now)  # some may have accepted it, so it comes to its end
        elif self._due:
            effects += self.propose(transitions.decide(round_, self._due), now)
        elif decision.is_idle and round_.witness != self._witness:
            effects += self.propose(transitions.attest(round_, self._witness), now)
        return effects

    def _with_verdicts(self, round_: Round, decision: Decision, dead: set[str], now: float) -> Decision:
        """A record that ends a world takes in what was decided in it; until that is known, nothing is proposed."""
        proposal = decision.proposal
        if proposal is None or not promises.needed(round_, proposal, self.reports):
            return decision
        proposal = replace(proposal, leave_after=0)  # nobody would coordinate the calls up to that step
        if round_.settings.durable:
            return replace(decision, proposal=proposal)  # nobody was told anything that the record does not know
        refused = {m.node for m in round_.members if self._liveness.only_refused(m.node, now)}
        self._owing = promises.owing(round_, self.reports, dead, refused, self._node)
        self.asks_promise = round_.edition
        if self._owing:
            owing = decisions.named(sorted(self._owing))
            return Decision(f"{decision.reason}; {owing} must promise to deliver no verdict", unheard=min(self._owing))
        verdicts = promises.verdicts(round_, self.reports)
        return replace(decision, proposal=transitions.taking_in(proposal, verdicts))

    def owe(self, verdicts: tuple[Verdict, ...]) -> None:
        """Have the next record take in these answers to calls, if there are any."""
        self._news = self._news or verdicts != self._due
        self._due = verdicts

    def _by_a_member(self, round_: Round, proposal: Round) -> Round:
        """Return `proposal`, or a meeting of its members if this agent is not one of them: they seal their world then.

        The agent that seals a world hosts its store, so it must be a member.
        """
        if proposal.phase is not Phase.SEALED or any(m.node == self._node for m in proposal.members):
            return proposal
        meeting = transitions.fall_short(round_, list(proposal.members), proposal.lost)
        meeting = transitions.taking_in(meeting, proposal.verdicts)
        return replace(meeting, stepless=proposal.stepless)  # else nobody would count such worlds

    def proposed(self, round_: Round) -> bool:
        """Return whether this agent made this record itself. Then the record says nothing new about the living.

        It need not be the last proposal: what others have accepted is decided first.
        """
        return round_ in self._made

    @property
    def waits_to_hear(self) -> bool:
        """Whether this agent leads, and can decide nothing before a member has reported to it."""
        return self.leading and bool(self._decision.unheard)

    def put_off(self, now: float) -> None:
        """The proposal cannot be decided now: with the next news, or after a while, there is another."""
        self._proposed = None
        self.again_at = now + self._retry_s

    def withdraw(self) -> None:
        """The proposal has come to nothing: nobody was asked to accept it."""
        self._withdrawn = True

    @property
    def _may_be_decided(self) -> bool:
        return self._proposed is not None and not self._withdrawn

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
        self.asks_promise = 0
        self.absent = []
        self.again_at = None

    def propose(self, round_: Round, now: float, *, begins: bool = False) -> list[Effect]:
        """Return the effect that proposes `round_`, or none if the same proposal may still be on its way.

        `begins`: with it this agent begins a job, or one whose members are all gone.
        """
        if round_.witness != self._witness:
            round_ = replace(round_, witness=self._witness)
        if self._proposed is not None and self._proposed[0] == round_ and now < self._proposed[1] + self._retry_s:
            return []
        self._proposed, self._withdrawn = (round_, now), False
        if round_ not in self._made:
            self._made.append(round_)
        self.again_at = now + self._retry_s
        return [do.Propose(round_, begins)]

    def _ask_for_store(self) -> list[Effect]:
        if self._store_asked:
            return []
        self._store_asked = True
        return [do.OpenWorkerStore()]

    def lend(self, store: Address) -> None:
        """Take the worker store that OpenWorkerStore asked for as the spare one."""
        self.spare_store, self._store_asked = store, False
        self._news = True
