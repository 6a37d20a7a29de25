"""The record, if the agents keep it themselves: how this agent finds its job, and agrees with others on each record.

Here the parts meet: `softrun.agent.consensus.search` finds the job, `softrun.agent.consensus.inquiry` asks the witness
before one is founded, `softrun.agent.consensus.replica` votes and proposes, `softrun.agent.consensus.witness_link`
keeps in touch with the witness, and `softrun.agent.rendezvous.election` says who leads and whom this agent hears. If a
store keeps the record, nothing here has anything to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from softrun.agent.consensus.descent import Kin, kin, the_quorum
from softrun.agent.consensus.inquiry import Inquiry
from softrun.agent.consensus.replica import Peers, Replica
from softrun.agent.consensus.search import Search
from softrun.agent.consensus.witness_link import WitnessLink
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.core.stages import Stage, Stages
from softrun.agent.core.standing import Standing
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.descriptions import count, describe_record
from softrun.agent.protocol.effects import Effect, Outbox
from softrun.agent.protocol.model import (
    Accept,
    Accepted,
    Address,
    Decided,
    Hello,
    LastWords,
    Message,
    Phase,
    Prepare,
    Promise,
    Record,
    Refused,
    Report,
    Round,
    Witnessed,
)
from softrun.agent.rendezvous import transitions
from softrun.agent.rendezvous.election import Election

_NO_WORDS = LastWords()
LOST_TOLERANCES = 6  # for so long at least a job that is known is looked for: who leads it may be silent by right
VISIT_S = 0.1  # members that are not heard are looked for when no other has come in for so long


class SharedRecord:
    """What one agent does to find the record and to keep it. `effects` is what the engine is about to return.

    Times are the engine's, in seconds.
    """

    def __init__(
        self,
        config: EngineConfig,
        standing: Standing,
        stages: Stages,
        election: Election,
        effects: Outbox,
        now: float,
    ) -> None:
        self._node = config.node
        self._interval_s = config.beat_interval_s
        self._search_s = config.search_s
        self._join_timeout_s = config.join_timeout_s
        self._least_s = LOST_TOLERANCES * config.beat_tolerance_s
        self._standing = standing
        self._stages = stages
        self._election = election
        self._effects = effects
        self._witness = WitnessLink(config.job.witness, config.beat_interval_s, config.beat_tolerance_s)
        peers = Peers(
            election.gone,
            self._is_silent,
            election.missed,
            stands=lambda: self._stands,
            worked_s=self._worked_s,
            now=lambda: self._now,
        )
        self._replica = Replica(config.node, peers) if config.endpoints else None
        if self._replica is not None:
            election.promise = self._replica.promise_ahead
            election.leases.left_behind_at = self._replica.left_behind_at
        self._search = Search(config.node, config.endpoints, config.strangers_s)
        self._inquiry = Inquiry(config.job.witness)
        self._searches_until = now + self._search_s
        self._in_vain_since = now  # since when no member of its job was heard
        self._visit_at: float | None = None  # when to look for the members that are not heard
        self._visit_s = VISIT_S
        self._absent = 0  # how many were not heard when it looked last
        self._worked = (0.0, now)  # for how long the job had had a world, and when
        self._apart: set[str] = set()  # members that have said that they go on in a job that has split from this one
        self._reported = ""  # the first lineage of the other job that was told of last
        self._now = now

    # --- what is seen

    def look(self, now: float, *, away: bool) -> None:
        """Call first at every observation. `away`: this agent itself was, since the last call."""
        self._now = now
        if away and self._is_lost:
            self._search.forget()
            self._effects += self._election.forget_found()
            self._effects += self._inquiry.drop()
        self._witness.look(now)

    def looked(self, seen: saw.Listening | saw.Found | saw.NotFound, own: Report) -> str:
        """Take in what was at an endpoint. Returns the member that was looked for there and refused, if one was."""
        match seen:
            case saw.Found(endpoint, node) if endpoint == self._witness.address and self._inquiry.is_open:
                self._effects += self._inquiry.found(node, self._election.ask(node, own), self._now)
            case saw.NotFound(endpoint) if endpoint == self._witness.address and self._inquiry.is_open:
                self._inquiry.not_found(self._now)
            case saw.Found() | saw.NotFound() if seen.endpoint == self._witness.address:
                self._effects += self._witness.looked(seen, self._standing.record, self._stands, self._now)
                self._election.leadership.reconsider()
            case saw.Listening(endpoint):
                self._search.listening(endpoint)
            case saw.Found(endpoint, node):
                sought = self._search.found(endpoint, node, self._now)
                self._effects += self._election.found(node, own, self._shown(node))
                return sought if sought != node else ""  # its port has been given to another
            case saw.NotFound(endpoint, stranger, refused, doubtful):
                sought = self._search.not_found(endpoint, stranger, self._now, doubtful=doubtful)
                if self._is_lost and (doubt := self._search.doubt(endpoint)):
                    self._effects.note(doubt, warning=True)
                return sought if refused else ""
        return ""

    def _shown(self, node: str) -> Sequence[Effect]:
        """What a leader says to an agent that it has found, unless its own job cannot go on."""
        leads = self._election.leadership.leading and not self._standing.cut_off
        return self._replica.show(node) if self._replica is not None and leads else ()

    def link_down(self, node: str, refused: bool) -> None:
        """Note that a link with `node` is lost. `refused`: nobody listens there any more."""
        self._effects += self._witness.lost(node, refused, self._now)

    def bury(self, node: str, words: LastWords) -> tuple[bool, Round | None]:
        """Take in what `node` knew when it ended. Returns whether that is clear, and as `hear` does."""
        replica = self._replica
        if replica is None:
            return True, None
        is_clear = replica.bury(node, words)
        news = self._take(replica)
        if news is not None:
            self._effects += replica.show(None)
        return is_clear, news

    @property
    def last_words(self) -> LastWords:
        """What others are to know if this agent ends now."""
        return self._replica.last_words if self._replica is not None else _NO_WORDS

    @property
    def last_words_in_full(self) -> LastWords:
        """The same for those that may know nothing of what this agent knows."""
        return self._replica.last_words_in_full if self._replica is not None else _NO_WORDS

    def hear(self, node: str, message: Message, own: Report) -> Round | None:
        """Take in a message from `node`, before the election does. `own` is this agent's last report.

        Returns the record if there is a new one: nothing may be decided by the old one any more.
        """
        replica = self._replica
        if replica is None:
            return None
        self._hear(node, message, own, replica)
        news = self._take(replica)
        record = news or self._standing.record
        if record is not None and node in record.by_node and not self._election.is_elsewhere(node):
            self._in_vain_since = self._now
        if news is not None:  # it was decided elsewhere: those that follow this agent may not know
            self._effects += replica.show(None)
        return news

    def _hear(self, node: str, message: Message, own: Report, replica: Replica) -> None:
        match message:
            case Prepare() | Promise() | Accept() | Accepted() | Refused() | Decided():
                self._effects += replica.hear(node, message)
                if replica.is_behind(message):
                    self._effects += self._election.ask(node, own)
            case Record():
                self._told(node, message, own, replica)
            case Report(known=known) if node in self._apart and replica.knows(known):
                self._apart.discard(node)
            case Hello():
                self._effects += self._election.greeted(node)
                self._effects += replica.greet(node, message)
                if replica.is_behind(message):
                    self._effects += self._election.ask(node, own)
            case Witnessed() if self._inquiry.is_of(node):
                self._effects += self._inquiry.answered(self._now)
            case Witnessed():
                self._effects += self._witness.heard(node, message, self._standing.record, self._now)
                record = self._standing.record
                if record is not None and kin(record, message.known) not in (Kin.OTHER, Kin.SPLIT):
                    self._effects += replica.greet(node, message)

    def _told(self, node: str, told: Record, report: Report, replica: Replica) -> None:
        """Another agent shows its record."""
        own, round_ = self._standing.record, told.round
        shown = replace(round_, worked_s=told.worked_s)
        relation = replica.kin(round_)
        if own is not None and own.lineage == round_.lineage and told.apart_from in (own.name, *own.past):
            relation = Kin.SPLIT  # its agent remembers more than a record
        answer = replica.compare(node, round_)
        if answer is not None:
            self._effects += answer
            if relation is Kin.OTHER and self._node in round_.by_node:
                self._effects.append(do.Say(node, report))  # which tells that it has left that job
        elif relation is Kin.NEWER:
            replica.read(shown)
        elif round_.heir is not None:
            pass  # that job is no more
        elif own is None or self._follows_rather(told, own):
            replica.read(shown)
        elif not (self._standing.is_placed and self._standing.cut_off):
            self._meet_another_job(node, told, own, report, replica, has_split=relation is Kin.SPLIT)

    def _follows_rather(self, told: Record, own: Round) -> bool:
        """Whether this node leaves the job that it knows for another that it is shown, without asking anybody."""
        if not self._standing.is_placed:
            return self._yields_to(told, own) or (told.stands and not self._stands)
        # If its world cannot go on it joins the others as if it had been started again.
        return self._standing.cut_off and told.stands and told.round.phase is not Phase.CLOSED

    def _meet_another_job(
        self, node: str, told: Record, own: Round, report: Report, replica: Replica, *, has_split: bool
    ) -> None:
        """There is another job beside that in which this node has a place, or waits for one. `has_split`: the two were
        one, and have the same name."""
        if has_split and told.apart_from:
            self._apart.add(node)
        elif has_split:
            self._effects += replica.show(node, apart_from=told.round.name)
        if self._node in told.round.by_node:
            self._effects.append(do.Say(node, report))  # which tells that it is here
        if not self._election.leadership.leading or own.is_last:
            if node not in own.by_node or has_split:  # else it was passed on already
                self._effects += self._election.pass_on(replace(told, apart_from=""))
        elif has_split:
            # This one takes another name, and then one of them gives up, as if it had been founded twice.
            self._report_two(told, own, "a proof of death was false, a clock stood still, or a host was set back")
            self._effects += self._election.propose(transitions.split(own, self._node))
        else:
            self._report_two(told, own, "its agents could not find each other")
            self._give_up_one(node, told, own, replica)

    def _report_two(self, told: Record, own: Round, why: str) -> None:
        """Say once for each other job that two worlds of this one are at work."""
        other = told.round.split_from or told.round.lineage
        if other == self._reported or not (own.number and told.round.number):
            return
        self._reported = other
        ours, theirs = describe_record(own, self._worked_s(own)), describe_record(told.round, told.worked_s)
        self._effects.append(
            do.Note(f"this job has become two ({why}): one of them gives up. Here: {ours}. There: {theirs}", error=True)
        )

    def _give_up_one(self, node: str, told: Record, own: Round, replica: Replica) -> None:
        """This job gives up, or has the other do so."""
        round_ = told.round
        first = next(iter(round_.members), None)
        # What the two know of each other is not of the same moment, so one of them compares: then both do the same.
        compares = own.lineage < round_.lineage
        if not (self._yields_to(told, own) if compares else told.over == own.lineage):
            self._effects += replica.show(node, over=round_.lineage if compares else "")
            if first is not None:
                self._search.visit(Address(first.host, first.port), self._now)  # its leader may not be this node
        elif told.stands and first is not None and round_.phase is not Phase.CLOSED:
            # Its first member may be gone; the node that shows it is there, if it has a place in it.
            heir = round_.by_node.get(node, first)
            self._effects += self._election.propose(transitions.give_up(own, Address(heir.host, heir.port)))

    def _yields_to(self, told: Record, own: Round) -> bool:
        """Whether this job is the one to give up. A quorum of the last record that both have never does."""
        keeps = the_quorum(own, told.round)
        if keeps is not None:
            return keeps is not own
        return transitions.yields_to(own.lineage, self._worked_s(own), told.round.lineage, told.worked_s)

    def _worked_s(self, round_: Round) -> float:
        if round_ is not self._standing.record:
            return round_.worked_s
        worked_s, since = self._worked
        return worked_s + (self._now - since if round_.phase is Phase.SEALED else 0.0)

    # --- the next record

    def choose_witness(self) -> None:
        """Say which witness the next record is to name. Call it before this agent leads."""
        self._election.leadership.attest(self._witness.choice(self._standing.record, self._now))

    def agree(self) -> Round | None:
        """Go on with the agreement on the next record: the proposals among the effects are this agent's.

        Returns the record if there is a new one.
        """
        replica = self._replica
        if replica is None:
            return None
        if replica.record is not self._standing.record:
            raise AssertionError("decided by an older record")
        proposals = [effect for effect in self._effects if isinstance(effect, do.Propose)]
        self._effects[:] = [effect for effect in self._effects if not isinstance(effect, do.Propose)]
        for effect in proposals:
            self._effects += self._propose(effect.round, replica, begins=effect.begins)
        self._effects += replica.advance()
        if replica.short and proposals:
            self._election.leadership.put_off(self._now)
            self._wait_for_others()
        elif self._election.leadership.absent and not self._stands and replica.falls_short():
            self._wait_for_others()  # it has nothing to propose, and could not
        self._standing.cut_off = replica.short
        if replica.dropped:
            self._election.leadership.withdraw()
        return self._take(replica)

    def _propose(self, round_: Round, replica: Replica, *, begins: bool) -> Sequence[Effect]:
        record = self._standing.record
        if round_.phase is Phase.CLOSED and self._witness.is_awaited(record, self._now):
            self._election.leadership.put_off(self._now)  # so that it ends with the job
            return ()
        if record is None or (begins and self._node not in record.by_node):
            return replica.begin(round_)
        return replica.propose(round_ if begins else replace(round_, worked_s=self._worked_s(record)))

    def _take(self, replica: Replica) -> Round | None:
        news = replica.take()
        if news is not None:
            self._worked = (news.worked_s, self._now)
        if news is not None and news.heir is not None:
            self._search.look_again(news.heir)
        if news is not None and news.phase is Phase.CLOSED:
            self._effects += self._witness.take_leave(news)
        return news

    def put_off(self) -> None:
        """Propose nothing more for now: with the next news, or after a while, this agent does."""
        proposals = [effect for effect in self._effects if isinstance(effect, do.Propose)]
        if self._replica is not None and proposals:
            self._effects[:] = [effect for effect in self._effects if effect not in proposals]
            self._election.leadership.put_off(self._now)

    def _wait_for_others(self) -> None:
        """Too few members of the world are in touch: the others may have gone on without this node."""
        record = self._standing.record
        if self._stages.stage is not Stage.WORKING or record is None:
            return
        silent = [node for node in record.voters if self._election.silent(node) or self._election.gone(node)]
        self._effects.note(
            f"{len(silent)} of {count(len(record.voters), 'node')} cannot be reached and may have gone on: this node "
            "waits for them, with its workers paused",
            warning=True,
        )
        self._standing.break_world()
        since = self._stages.since
        self._stages.halt(self._now)
        # All that waited for the same members give up together, not one after the other.
        self._stages.open_since = min(self._now, max(since, self._election.leases.until))

    # --- the search

    @property
    def founds(self) -> bool:
        """Whether this agent is the one to found the job, if it has met none, or none that goes on."""
        return self._may_found and self._inquiry.is_settled(self._now)

    @property
    def _may_found(self) -> bool:
        """Whether none of those that it can look for has a job that goes on; the witness may know of one."""
        heir = self._heir
        return self._search.founds(self._election.is_jobless) and (heir is None or self._search.is_empty(heir))

    @property
    def despairs(self) -> bool:
        """Whether it has looked for the members of its job in vain for so long that it begins anew without them."""
        return self._is_lost and self._now >= self._despairs_at

    @property
    def _despairs_at(self) -> float:
        # Later than that, its own time would be over before others could join it.
        in_vain_s = max(min(self._search_s, self._join_timeout_s), self._least_s) / 2
        return self._in_vain_since + in_vain_s

    @property
    def failure(self) -> str:
        """Why no job was found, and what to do."""
        return self._search.failure(self._search_s)

    @property
    def gives_up_at(self) -> float | None:
        """When this agent ends because it has found no job."""
        if not self._is_lost:
            return None
        strange = self._search.gives_up_at if self._standing.record is None else None
        return self._searches_until if strange is None else min(strange, self._searches_until)

    def look_around(self) -> None:
        """Look for the job, for those that look for it, and as leader for the members that are not heard."""
        if self._replica is None:
            return
        if not self._is_lost:
            self._searches_until, self._in_vain_since = self._now + self._search_s, self._now
        self._visit_absent(self._replica)
        leads = self._election.leadership.leading
        self._effects += self._witness.advance(self._standing.record, leads, self._now)
        self._effects += self._search.advance(self._searches, self._heir, self._election.in_touch, self._now)
        self._effects += self._inquiry.advance(self._may_found, self._now) if self._is_lost else self._inquiry.drop()

    def _visit_absent(self, replica: Replica) -> None:
        record = self._standing.record
        if self._visit_at is not None and self._now < self._visit_at:
            return
        if not self._election.leadership.absent and not replica.missing:
            self._visit_at = None  # most observations
            return
        absent = [m for m in self._election.leadership.absent if not self._election.gone(m.node)]
        if record is not None and (missing := replica.missing):
            absent += [m for m in record.members if m.node in missing and m.node != self._node]
        absent = [m for m in absent if not self._election.in_touch(m.node)]
        before, self._absent = self._absent, len(absent)
        if not absent:
            self._visit_at = None
        elif self._visit_at is None or len(absent) < before:
            self._visit_at, self._visit_s = self._now + VISIT_S, VISIT_S
        else:
            self._visit_s = min(2 * self._visit_s, self._interval_s)
            self._visit_at = self._now + self._visit_s
            for member in absent:
                self._search.visit(Address(member.host, member.port), self._now, member.node)

    def deadlines(self) -> list[float | None]:
        """When to look again without any news; None entries are no deadlines."""
        despairs_at = self._despairs_at if self._is_lost and not self.despairs else None
        search, witness = self._search.deadline(self._searches), self._witness.deadline()
        return [search, self._visit_at, despairs_at, self.gives_up_at, witness, self._inquiry.deadline]

    def adopt(self, round_: Round) -> None:
        """Take in the new record, wherever it is kept."""
        replica = self._replica
        since, by_all = (replica.since, replica.accepted_by_all) if replica is not None else (self._now, False)
        self._effects += self._election.adopt(round_, since, accepted_by_all=by_all)
        if self._search_s < self._least_s:
            self._search_s, self._searches_until = self._least_s, self._now + self._least_s

    @property
    def is_kept(self) -> bool:
        """Whether the agents keep the record, not a store."""
        return self._replica is not None

    def _is_silent(self, node: str) -> bool:
        record = self._standing.record
        if record is not None and node == record.witness:
            return self._witness.is_out(node, self._now)
        # Whoever is in another job casts no vote in this one.
        return self._election.silent(node) or self._election.is_elsewhere(node) or node in self._apart

    @property
    def _heir(self) -> Address | None:
        """Where the job goes on that this one has given up for."""
        return self._standing.record.heir if self._standing.record is not None else None

    @property
    def _stands(self) -> bool:
        """Whether this node is sure that its record is the newest, or follows one that is."""
        return self._now < self._election.leases.until

    @property
    def _is_lost(self) -> bool:
        """Whether this agent has no job yet, or none of its agents can lead it."""
        return self._replica is not None and not (self._standing.is_placed or self._stands)

    @property
    def _searches(self) -> bool:
        """Whether this agent has to find its job, or those that look for it."""
        record = self._standing.record
        if (record is not None and record.phase is Phase.CLOSED) or self._stages.stage is Stage.LEAVING:
            return False
        return self._is_lost or (self._replica is not None and self._election.leadership.leading)
