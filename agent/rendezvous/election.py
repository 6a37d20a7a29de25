"""Which agent an agent follows: the leader of the record, to which it reports, or itself, and then it leads.

All agents find the leader by the same rule: the first member of the record that lives, has not withdrawn and can be in
the next world, too; after those the members that are leaving, and last those that have finished. A follower keeps one
link, to the leader, and watches it; a leader watches all members. When the leader dies or steps back, the rule gives
the next one, and the others dial it.

A newcomer is not in the record yet. It follows the leader as well, and takes over if no node in the record can lead any
more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from softrun.agent.consensus.descent import Kin, kin
from softrun.agent.consensus.leases import Leases
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.effects import Effect
from softrun.agent.protocol.model import (
    NO_RECORD,
    Ballot,
    Beat,
    Hello,
    LastWords,
    Member,
    Message,
    NodeIntent,
    Phase,
    Record,
    RecordId,
    Report,
    Round,
)
from softrun.agent.rendezvous import member_status, transitions
from softrun.agent.rendezvous.decisions import LeaderTimeouts
from softrun.agent.rendezvous.leader import Leader
from softrun.agent.rendezvous.lease_ender import LeaseEnder
from softrun.agent.rendezvous.liveness import Liveness
from softrun.agent.rendezvous.member_status import MemberStatus


class Election:
    """Which agent this one follows, and what it does while it leads. Times are the engine's, in seconds.

    `agrees`: the agents keep the record, so its members must agree on the next one, whatever has become of them.
    """

    def __init__(
        self,
        node: str,
        interval_s: float,
        tolerance_s: float,
        timeouts: LeaderTimeouts,
        now: float,
        agrees: bool = False,
    ) -> None:
        self._node = node
        self._agrees = agrees
        self._begins_again = timeouts.begins_again
        self._interval_s = interval_s
        self._now = now
        self._record: Round | None = None
        self.leases = Leases(node, tolerance_s, lambda: self._liveness.promise_s)
        self._liveness = Liveness(interval_s, tolerance_s, now, self.leases.owed)
        self.leadership = Leader(node, self._liveness, timeouts, interval_s, agrees)
        self._lease_ender = LeaseEnder(node, self._liveness, self.leadership.reports) if timeouts.converges else None
        self._following: str | None = None
        self._link_up = False
        self._redial_at: float | None = None
        self._moves_at = -inf  # before that, this agent follows nobody else if it leaves
        self._led_at = -inf  # when the one that this agent follows said last that it leads
        self._is_unled = False
        self._said: Report | None = None
        self._beat_at = now
        # Nodes to which this agent has a link although it does not follow them, and whether they have reported since.
        self._found: dict[str, bool] = {}
        self.promise: Callable[[str], Ballot | None] = lambda _node: None
        """What this agent promises a node that it follows from now on, as it says hello."""

    # --- what is seen

    def was_away(self, now: float) -> bool:
        """Return whether this agent itself was away since the last call of `look`."""
        return self._liveness.was_away(now)

    def look(self, now: float) -> bool:
        """Call first at every observation. Returns whether this agent itself was away since the last call."""
        self._now = now
        return self._liveness.look(now)

    def adopt(self, round_: Round, since: float = -inf, *, accepted_by_all: bool = False) -> list[Effect]:
        """Take in the new record. Returns the effects that close worker stores that no world needs.

        `since`: when this agent accepted it, if it did; `accepted_by_all`: see `Replica`.
        """
        before, self._record = self._record, round_
        stands_now = self.leases.join(round_.voters, since, self._now, accepted_by_all=accepted_by_all)
        if round_.says_more_than(before) and not self.leadership.proposed(round_):
            self._liveness.forgive_silence()
            if self._following is not None:
                self._liveness.watch(self._following, self._now)
        for member in round_.members:
            if member.lease_number:
                self._liveness.holds(member.node, member.lease_number)
            if self._agrees and before is not None and member.node not in before.by_node:
                self._liveness.mark_back(member.node)  # if it was not gone; nobody returns under its name
        effects = self.leadership.adopt(round_, self._now)
        return [*effects, *self._grant_all()] if stands_now and accepted_by_all else effects

    def hear(self, node: str, message: Message, own: Report) -> list[Effect]:
        """Take in a message from `node`. `own` is this agent's last report; returns what to answer."""
        returned = self._liveness.silent(node, self._now)
        self._liveness.heard(node, self._now)
        self.leases.meet(node)
        if returned:
            self.leadership.heard_again(node)
        report = message.report if isinstance(message, Hello) else message
        if isinstance(report, Report) and report.member.node == node:
            if node in self._found:
                self._found[node] = True
            self._liveness.holds(node, report.member.lease_number)
            self.leadership.hear(report, behind=self._is_behind(report.known))
        match message:
            case Hello(beat=None):
                return [do.Say(node, own)]
            case Hello(beat=Beat() as beat):
                return [do.Say(node, own), *self._beaten(node, beat, own, returned=False)]
            case Beat():
                return self._beaten(node, message, own, returned)
            case _:
                return []

    def hear_follower(self, node: str, beat: Beat, own: Report) -> list[Effect] | None:
        """Take in a beat of a node that is in touch and follows this one. Returns what to answer.

        None if more may follow from it: then it is not taken in, and is to be heard.
        """
        leads = self.leadership.leading and self._now < self.leases.until
        if not leads or node not in self.leadership.reports or self._liveness.silent(node, self._now):
            return None
        return self.hear(node, beat, own)

    def _is_behind(self, known: RecordId) -> bool:
        """Whether a node that knows this record does not know the newest yet."""
        return self._record is not None and known.version > 0 and kin(self._record, known) is Kin.OLDER

    def _beaten(self, node: str, beat: Beat, own: Report, returned: bool) -> list[Effect]:
        first = self.leases.heard(node, beat, self._now)
        if beat.leads and node == self._following:
            self._led_at = self._now
        if beat.echo:
            self._liveness.answered(node, self._now - beat.echo, self._now)
        effects: list[Effect] = []
        if first and node == self._following:
            effects.append(self._say_beat(node))  # with an echo, which gives the leader its lease
        if self.leadership.leading:
            effects += self._lead_on()
        if beat.asks:
            effects.append(self._say_beat(node))
        if returned or node not in self.leadership.reports:
            effects.append(do.Say(node, Hello(own)))  # its last report may no longer hold, or be forgotten here
        return effects

    def _lead_on(self) -> list[Effect]:
        """Renew this leader's lease. If it stands again, all that follow get theirs at once."""
        return self._grant_all() if self.leases.lead(self._liveness.gone, self._now) else []

    def _grant_all(self) -> list[Effect]:
        return [self._say_beat(node) for node in self.leadership.reports if node != self._node]

    def _say_beat(self, node: str, asks: bool = False) -> do.Say:
        return do.Say(node, self._next_beat(node, asks))

    def _next_beat(self, node: str, asks: bool = False) -> Beat:
        ending = self._lease_ender is not None and self._lease_ender.is_ending(node)
        leads, follows = self.leadership.leading and not ending, node == self._following and not ending
        refused = self._liveness.refusals_until is not None
        return self.leases.beat(node, self._now, leads=leads, follows=follows, asks=asks, refused=refused)

    def link_up(self, node: str, own: Report) -> list[Effect]:
        """Note that the link dialled to `node` is up. Returns the first report on it."""
        if node != self._following:
            return []
        self._liveness.heard(node, self._now)  # its agent has answered
        self._link_up, self._redial_at = True, None
        self._beat_at = self._now + self._interval_s
        return [do.Say(node, Hello(own, self.promise(node), self._next_beat(node, asks=True)))]

    def found(self, node: str, own: Report, shown: Sequence[Effect] = ()) -> Sequence[Effect]:
        """Note a link to a node that this agent does not follow. Returns the first message on it.

        That is what is `shown` there by a leader, or else a hello.
        """
        if node in (self._node, self._following):
            return []
        self._found[node] = False
        self._liveness.heard(node, self._now)  # its agent has answered
        return shown or [do.Say(node, Hello(own))]

    def forget_found(self) -> list[Effect]:
        """This agent was away: what those have said that it does not follow may not hold any more."""
        found = sorted(self._found)
        self._found.clear()
        return [do.HangUp(node) for node in found]

    def ask(self, node: str, own: Report) -> list[Effect]:
        """Return the effect that asks `node` for the record that it knows."""
        return [do.Say(node, Hello(own))]

    def pass_on(self, record: Record) -> list[Effect]:
        """Return the effects that show the record of another job to the leader of this one, if it is in touch."""
        return [do.Say(self._following, record)] if self._following is not None and self._link_up else []

    def greeted(self, node: str) -> list[Effect]:
        """Note that `node` said hello, so it has dialled. Returns the effect that closes a link made to find it."""
        if not self.leadership.leading or node not in self._found:
            return []
        del self._found[node]
        return [do.HangUp(node)]

    def link_down(self, node: str, refused: bool) -> None:
        """Note that a link with `node` is lost. `refused`: nobody listens there any more, which proves nothing."""
        self._found.pop(node, None)
        self.leases.forget(node)
        if refused:
            self._liveness.mark_refused(node, self._now)
            self.leadership.mark_gone(node)
        self.leadership.lose_touch(node)
        if node == self._following:
            self._link_up = False
            self._redial_at = self._now + self._interval_s / 4

    def mark_gone(self, node: str) -> None:
        """Note that the process of `node` has certainly ended."""
        self.leases.part(node, self._now)
        self._liveness.mark_gone(node)
        self.leadership.mark_gone(node)

    def gone(self, node: str) -> bool:
        """Return whether the process of `node` has certainly ended."""
        return self._liveness.gone(node)

    def silent(self, node: str) -> bool:
        """Return whether `node` refuses, or was expected to speak and has not for the tolerance."""
        return self._liveness.dead(node, self._now)

    def missed(self, node: str) -> bool:
        """Return whether `node` was expected to speak and has not for the tolerance."""
        return self._liveness.missed(node, self._now)

    def is_elsewhere(self, node: str) -> bool:
        """Return whether `node` has said that it is in another job, which was founded beside this one."""
        report, record = self.leadership.reports.get(node), self._record
        return report is not None and record is not None and member_status.is_elsewhere(report, record)

    def is_jobless(self, node: str) -> bool:
        """Return whether a node has said that it has no job, since a link was made to find it."""
        report = self.leadership.reports.get(node)
        return self._found.get(node, False) and report is not None and report.known == NO_RECORD

    def in_touch(self, node: str) -> bool:
        """Return whether there is a link with `node`, on which it has spoken lately."""
        if node in self._found or (node == self._following and self._link_up):
            return True
        reports = self.leadership.leading and self.leadership.in_touch(node)
        return reports and not self._liveness.silent(node, self._now)

    def hears_leader(self) -> bool:
        """Return whether this agent follows a leader, and its link to it is up."""
        return self._following is not None and self._link_up

    def judge_by_leases(self) -> None:
        """Judge silence by leases from now on: the store has them, so silence alone proves nothing."""
        self._liveness.leased = True

    def lease_expired(self, node: str, lease_number: int) -> None:
        """Note that a lease of `node` has expired: the node is dead, or its workers have stopped."""
        self._liveness.expire(node, lease_number)
        if self._liveness.gone(node):
            self.leadership.mark_gone(node)

    # --- who leads

    def leader(self, record: Round | None, own: Report) -> Member | None:
        """Return the leader; None without a record, after the end of the job, or if no member can lead.

        It is the first member that lives, as far as this agent knows, has not withdrawn and can be in the next world:
        its agent will host the store of that world, and nobody would notice the loss of one that is not a member.
        One that leaves leads on until it hands over: many may be told to, one after the other. So does one that has
        finished until that is recorded. After these come those that will not be in the next world, then those that
        have finished. If the agents keep the record the last
        are those that have withdrawn: their agents still have a say in what is the next record.
        """
        if record is None or record.is_last:
            return None
        passing = finished = withdrawn = None
        for member in record.members:
            match self._status_of(member, own):
                case MemberStatus.UNHEARD:
                    return member
                case MemberStatus.STAYS:
                    report = self._report_of(member, own)
                    if report is not None and member_status.goes_on(record, report):
                        return member
                    passing = passing or member
                case MemberStatus.DONE if self._liveness.dead(member.node, self._now) or not record.votes(member.node):
                    pass
                case MemberStatus.DONE if member.node not in record.finished_nodes:
                    return member  # it may be the only one that knows who else has finished, and is to record that
                case MemberStatus.DONE:
                    finished = finished or member
                case MemberStatus.WITHDRAWN if withdrawn is None and not self._liveness.dead(member.node, self._now):
                    withdrawn = member
                case _:
                    pass
        return passing or finished or (withdrawn if self._agrees else None)

    def _believes_refusals(self, leader: str) -> bool:
        """Whether none that refused is to be dialled again, as `leader` leads, or it is not clear yet that it does not.

        It leads if it has said so lately. While there is no word from it, it may turn out to be dead; if others were
        dialled meanwhile it would be waited for anew each time. With leases in a store silence proves nothing, so that
        is no reason to wait, and members that do not report to this agent may report to one that refused.
        """
        leased = self._liveness.leased
        if leader == self._node:
            return not (leased and self.leadership.waits_to_hear)
        if self._now - self._led_at < self._liveness.tolerance_s:
            return True
        return not leased and self._liveness.silent(leader, self._now)

    def _status_of(self, member: Member, own: Report) -> MemberStatus:
        dead = member.node != self._node and self._liveness.dead(member.node, self._now)
        report = self._report_of(member, own)
        return member_status.status_of(member, report, dead, self._record, self._begins_again)

    def _report_of(self, member: Member, own: Report) -> Report | None:
        return own if member.node == self._node else self.leadership.reports.get(member.node)

    # --- what is done

    def deadlines(self) -> list[float | None]:
        """Return when `advance` must be called without any news; None entries are no deadlines."""
        return [
            self._beat_at,
            self._liveness.deadline(),
            self._redial_at,
            self._moves_at if self._moves_at > self._now else None,
            self.leadership.again_at,
            self._lease_ender.deadline if self._lease_ender is not None else None,
            self._liveness.refusals_until if self._is_unled else None,
        ]

    def advance(
        self,
        record: Round | None,
        own: Report,
        seeks: bool,
        may_propose: bool = True,
        founds: bool = True,
        despairs: bool = False,
    ) -> list[Effect]:
        """Return the effects of what was seen: report, follow or lead, take over, beat.

        `seeks`: this agent has no world, and would take over, if it `founds` even from members that are gone, and if it
        `despairs` even from members of which it does not know that, but which it has looked for in vain for long.
        `may_propose`: nobody can take it for dead; else a record could name a member whose death is known already.
        """
        effects = self.tell(own)
        effects += self._hang_up_silent()
        leader = self.leader(record, own)
        self._is_unled = leader is None or not self._believes_refusals(leader.node)
        if self._is_unled and self._liveness.forgive_refusals(self._now):
            leader = self.leader(record, own)
        effects += self._follow(leader, own)
        if not may_propose:
            self.leadership.stand_down()
        elif record is not None and leader is not None and leader.node == self._node:
            effects += self._end_leases(record, leader)
            effects += self.leadership.lead(record, self._now)
            if seeks and self._agrees and self._abandoned(record, own):
                effects += self._take_over(record, own, founds=True)
            if self.leases.until <= self._now:
                effects += self._lead_on()
        else:
            self.leadership.stand_down()
            if record is not None and leader is not None:
                effects += self._end_leases(record, leader)
            over = record is not None and record.phase is Phase.CLOSED
            if record is not None and not over and seeks and self._may_begin(record, leader, own, despairs):
                effects += self._take_over(record, own, founds)
        return effects + self._beat()

    def _end_leases(self, record: Round, leader: Member) -> Sequence[Effect]:
        return self._lease_ender.advance(record, leader, self._now) if self._lease_ender is not None else ()

    def leaders_report(self, record: Round | None, own: Report) -> Report | None:
        """Return the last report of the leader, `own` if this agent leads, or None if it hears no leader."""
        leader = self.leader(record, own)
        if leader is None or leader.node == own.member.node:
            return own if leader is not None else None
        return self.leadership.reports.get(leader.node) if self._link_up else None

    def propose(self, round_: Round) -> list[Effect]:
        """Return the effect that proposes `round_`, or none if the same proposal may still be on its way."""
        return self.leadership.propose(round_, self._now)

    def begin(self, round_: Round) -> list[Effect]:
        """Return the effect that begins a job, or one whose members are all gone, with this record."""
        return self.leadership.propose(round_, self._now, begins=True)

    def take_leave(self, own: Report, words: LastWords) -> list[Effect]:
        """Return the last effects of this agent: its last words, with its last report."""
        last = replace(words, report=replace(own, ends=True, sequence=own.sequence + 1))
        to_leader = [do.Say(self._following, last)] if self._following is not None and self._link_up else []
        return [*to_leader, do.Say(None, last)]

    def tell(self, own: Report) -> list[Effect]:
        """Return the effects that send `own` to the leader and the followers, if it is news to them."""
        if own is self._said:
            return []
        before, self._said = self._said, own
        self.leadership.hear(own)
        if before is not None and _is_no_news(own, before):
            return []
        to_leader = [do.Say(self._following, own)] if self._following is not None and self._link_up else []
        return [*to_leader, do.Say(None, own)]

    def _follow(self, leader: Member | None, own: Report) -> list[Effect]:
        target = leader if leader is not None and leader.node != self._node else None
        effects = self._hang_up_found(target) if self._record is not None else []
        if (target.node if target is not None else None) != self._following:
            if target is not None and own.intent is NodeIntent.LEFT:
                if self._now < self._moves_at:
                    return effects  # all may leave, and each that it asks for a leader
                self._moves_at = self._now + self._interval_s
            effects += [do.HangUp(self._following)] if self._following is not None else []
            self._following, self._link_up, self._redial_at = (target.node if target else None), False, None
            self._led_at = -inf
            self._liveness.stop_watching(self._now)
            if target is not None:
                self._liveness.watch(target.node, self._now)
                if target.node in self._found:
                    del self._found[target.node]
                    effects += self.link_up(target.node, own)
                else:
                    effects.append(do.Dial(target))
            return effects
        if target is not None and self._redial_at is not None and self._now >= self._redial_at:
            self._redial_at = None
            effects.append(do.Dial(target))
        return effects

    def _hang_up_found(self, target: Member | None) -> list[Effect]:
        """Close the links to nodes that report to this agent by now, or are not needed to find another."""
        if not self._found or not (target is not None or self.leadership.leading):
            return []
        kept = target.node if target is not None else ""
        over = sorted(node for node, answered in self._found.items() if answered and node != kept)
        for node in over:
            del self._found[node]
        return [do.HangUp(node) for node in over]

    def _hang_up_silent(self) -> list[Effect]:
        """Close the links to nodes that were found and do not speak: their hosts may be gone, so look there again."""
        silent = [node for node in self._found if self._liveness.silent(node, self._now)]
        for node in silent:
            del self._found[node]
        return [do.HangUp(node) for node in silent]

    def _may_begin(self, record: Round, leader: Member | None, own: Report, despairs: bool) -> bool:
        """Whether this agent may begin anew, beside the members of the record, or may close it."""
        if self._agrees:
            # Members that are out of reach may be in a world. But nobody begins another one when the work is done.
            free = despairs or self._has_finished(record, own) or self._abandoned(record, own)
            return (leader is None and free) or all(map(self._liveness.gone, record.voters))
        # A newcomer need not try one dead member after another.
        stranger = record.member(*own.member.life) is None and not self._link_up
        return (leader is None or stranger) and self._abandoned(record, own)

    def _has_finished(self, record: Round, own: Report) -> bool:
        done = (self._status_of(m, own) is MemberStatus.DONE for m in record.members)
        if self._begins_again and record.preemption is None:
            return bool(record.members) and all(done)
        return record.finishing or any(done)

    def _take_over(self, record: Round, own: Report, founds: bool) -> list[Effect]:
        if self._has_finished(record, own):
            # "Finished work is never run again": if the nodes that had begun to finish are gone, the job is over.
            return self.begin(transitions.close(record, ""))
        if not founds:
            return []
        unheard = (MemberStatus.LOST, MemberStatus.UNHEARD)
        silent = sorted(m.node for m in record.members if self._status_of(m, own) in unheard)
        return self.begin(transitions.take_over(record, own.member, tuple(silent)))

    def _abandoned(self, record: Round, own: Report) -> bool:
        """Return whether it is certain that no member of the record can lead.

        A newcomer that cannot reach the members may itself be at fault, so its links prove nothing unless they were up
        before, or were refused.
        """
        certain = (MemberStatus.WITHDRAWN, MemberStatus.DONE)
        return all(self._liveness.gone(m.node) or self._status_of(m, own) in certain for m in record.members)

    def _beat(self) -> list[Effect]:
        if self._now < self._beat_at:
            return []
        self._beat_at = self._now + self._interval_s
        if self._following is not None and self._link_up:
            return [self._say_beat(self._following, asks=True)]
        return []


def _is_no_news(own: Report, before: Report) -> bool:
    """Whether it says no more than the last report, but for what nobody waits for."""
    same_job = own.known.lineage == before.known.lineage
    return same_job and own == replace(before, told=own.told, known=own.known, sequence=own.sequence)
