"""Which agent an agent follows: the leader of the record, to which it reports, or itself, and then it leads.

All agents find the leader by the same rule: the first member of the record that lives, has not withdrawn and can be in
the next world, too; after those the members that are leaving, and last those that have finished. A follower keeps one
link, to the leader, and watches it; a leader watches all members. When the leader dies or steps back, the rule gives
the next one, and the others dial it.

A newcomer is not in the record yet. It follows the leader as well, and takes over if no node in the record can lead any
more.
"""

from __future__ import annotations

from dataclasses import replace

from softrun.agent.protocol import effects as do
from softrun.agent.protocol.effects import Effect
from softrun.agent.protocol.model import Beat, Hello, Member, Message, Phase, Report, Round
from softrun.agent.rendezvous import member_status, transitions
from softrun.agent.rendezvous.decisions import LeaderTimeouts
from softrun.agent.rendezvous.leader import Leader
from softrun.agent.rendezvous.liveness import Liveness
from softrun.agent.rendezvous.member_status import MemberStatus


class Election:
    """Which agent this one follows, and what it does while it leads. Times are the engine's, in seconds."""

    def __init__(self, node: str, interval_s: float, tolerance_s: float, timeouts: LeaderTimeouts, now: float) -> None:
        self._node = node
        self._interval_s = interval_s
        self._tolerance_s = tolerance_s
        self._now = now
        self._liveness = Liveness(interval_s, tolerance_s, now)
        self.leadership = Leader(node, self._liveness, timeouts, interval_s)
        self._following: str | None = None
        self._link_up = False
        self._redial_at: float | None = None
        self._said: Report | None = None
        self._beat_at = now
        # The leader's count in the store, and when that count was read first and last.
        self._leader_beat: tuple[int, float, float] | None = None

    # --- what is seen

    def look(self, now: float) -> bool:
        """Call first at every observation. Returns whether this agent itself was away since the last call."""
        self._now = now
        return self._liveness.look(now)

    def adopt(self, round_: Round) -> list[Effect]:
        """Take in the new record. Returns the effects that close worker stores that no world needs."""
        if not self.leadership.proposed(round_):
            self._liveness.forgive_silence()
            if self._following is not None:
                self._liveness.watch(self._following, self._now)
        for member in round_.members:
            if member.lease_number:
                self._liveness.holds(member.node, member.lease_number)
        self._leader_beat = None  # some agent wrote this record: whether it still lives is a new question
        return self.leadership.adopt(round_)

    def hear(self, node: str, message: Message, own: Report) -> list[Effect]:
        """Take in a message from `node`. `own` is this agent's last report; returns what to answer."""
        returned = self._liveness.silent(node, self._now)
        self._liveness.heard(node, self._now)
        if returned:
            self.leadership.heard_again(node)
        report = message.report if isinstance(message, Hello) else message
        if isinstance(report, Report) and report.member.node == node:
            self._liveness.holds(node, report.member.lease_number)
            self.leadership.hear(report)
        if isinstance(message, Hello):
            return [do.Say(node, own)]
        if isinstance(message, Beat) and (returned or node not in self.leadership.reports):
            return [do.Say(node, Hello(own))]  # its last report may no longer hold, or be forgotten here
        return []

    def link_up(self, node: str, own: Report) -> list[Effect]:
        """Note that the link dialled to `node` is up. Returns the first report on it."""
        if node != self._following:
            return []
        self._link_up, self._redial_at, self._leader_beat = True, None, None
        return [do.Say(node, Hello(own))]

    def link_down(self, node: str, gone: bool) -> None:
        """Note that a link with `node` is lost. `gone`: its process has certainly ended, too."""
        if gone:
            self._liveness.mark_gone(node)
            self.leadership.mark_gone(node)
        self.leadership.lose_touch(node)
        if node == self._following:
            self._link_up = False
            self._redial_at = self._now + self._interval_s / 4

    def heeds(self, node: str) -> bool:
        """Return whether `node` is the leader that this agent follows. If it follows none, any node will do."""
        return self._following in (None, node)

    def judge_by_leases(self) -> None:
        """Judge silence by leases from now on: the store has them, so silence alone proves nothing."""
        self._liveness.leased = True

    def lease_expired(self, node: str, lease_number: int) -> None:
        """Note that a lease of `node` has expired: the node is dead, or its workers have stopped."""
        if node != self._node:
            self._liveness.expire(node, lease_number)
            if self._liveness.gone(node):
                self.leadership.mark_gone(node)

    def leader_beats(self, count: int, record: Round | None, own: Report) -> None:
        """Take in the leader's count of beats, as the store has it now."""
        if self._leader_beat is not None and count == self._leader_beat[0]:
            self._leader_beat = (count, self._leader_beat[1], self._now)
            return
        self._leader_beat = (count, self._now, self._now)
        if record is not None and self.leader(record, own) is None:
            # A member that this agent took for dead leads: try to reach the members once more.
            self._liveness.forgive_silence()

    # --- who leads

    def leader(self, record: Round | None, own: Report) -> Member | None:
        """Return the leader; None without a record, after the end of the job, or if no member can lead.

        It is the first member that lives, as far as this agent knows, has not withdrawn and can be in the next world:
        its agent will host the store of that world, and nobody would notice the loss of one that is not a member.
        Members that are leaving come after these, and those that have finished last.
        """
        if record is None or record.phase is Phase.CLOSED:
            return None
        leaving = finished = None
        for member in record.members:
            match self._status_of(member, own):
                case MemberStatus.UNHEARD:
                    return member
                case MemberStatus.STAYS:
                    report = self._report_of(member, own)
                    if report is not None and member_status.goes_on(record, report):
                        return member
                    leaving = leaving or member
                case MemberStatus.DONE if finished is None and not self._liveness.dead(member.node, self._now):
                    finished = member
                case _:
                    pass
        return leaving or finished

    def _status_of(self, member: Member, own: Report) -> MemberStatus:
        dead = member.node != self._node and self._liveness.dead(member.node, self._now)
        return member_status.status_of(member, self._report_of(member, own), dead)

    def _report_of(self, member: Member, own: Report) -> Report | None:
        return own if member.node == self._node else self.leadership.reports.get(member.node)

    # --- what is done

    def deadlines(self) -> list[float | None]:
        """Return when `advance` must be called without any news; None entries are no deadlines."""
        return [self._beat_at, self._liveness.deadline(), self._redial_at, self.leadership.again_at]

    def advance(self, record: Round | None, own: Report, seeks: bool, may_propose: bool = True) -> list[Effect]:
        """Return the effects of what was seen: report, follow or lead, take over, beat.

        `seeks`: this agent has no world, and would take over. `may_propose`: nobody can take it for dead; else a record
        could name a member whose death is known already.
        """
        effects = self.tell(own)
        leader = self.leader(record, own)
        effects += self._follow(leader)
        if not may_propose:
            self.leadership.stand_down()
        elif record is not None and leader is not None and leader.node == self._node:
            effects += self.leadership.lead(record, self._now)
        else:
            self.leadership.stand_down()
            if record is not None and record.phase is not Phase.CLOSED and seeks:
                effects += self._take_over(record, leader, own)
        return effects + self._beat(reads=record is not None and seeks)

    def leaders_report(self, record: Round | None, own: Report) -> Report | None:
        """Return the last report of the leader, `own` if this agent leads, or None if it hears no leader."""
        leader = self.leader(record, own)
        if leader is None or leader.node == own.member.node:
            return own if leader is not None else None
        return self.leadership.reports.get(leader.node) if self._link_up else None

    def propose(self, round_: Round) -> list[Effect]:
        """Return the effect that proposes `round_`, or none if the same proposal may still be on its way."""
        return self.leadership.propose(round_, self._now)

    def take_leave(self, own: Report) -> list[Effect]:
        """Return the last effects of this agent: its last report, and the end of its link to the leader."""
        effects = self.tell(own)
        return [*effects, do.HangUp(self._following)] if self._following is not None else effects

    def tell(self, own: Report) -> list[Effect]:
        """Return the effects that send `own` to the leader and the followers, if it is news to them."""
        if own is self._said:
            return []
        before, self._said = self._said, own
        self.leadership.hear(own)
        if before is not None and own == replace(before, asks=own.asks, sequence=own.sequence):
            return []
        to_leader = [do.Say(self._following, own)] if self._following is not None and self._link_up else []
        return [*to_leader, do.Say(None, own)]

    def _follow(self, leader: Member | None) -> list[Effect]:
        target = leader if leader is not None and leader.node != self._node else None
        if (target.node if target is not None else None) != self._following:
            effects: list[Effect] = [do.HangUp(self._following)] if self._following is not None else []
            self._following, self._link_up, self._redial_at = (target.node if target else None), False, None
            self._liveness.stop_watching(self._now)
            if target is not None:
                self._liveness.watch(target.node, self._now)
                effects.append(do.Dial(target))
            return effects
        if target is not None and self._redial_at is not None and self._now >= self._redial_at:
            self._redial_at = None
            return [do.Dial(target)]
        return []

    def _take_over(self, record: Round, leader: Member | None, own: Report) -> list[Effect]:
        # A newcomer need not try one dead member after another.
        stranger = record.member(*own.member.life) is None and not self._link_up
        if not (leader is None or stranger) or not self._abandoned(record, own):
            return []
        statuses = {m.node: self._status_of(m, own) for m in record.members}
        if record.finishing or MemberStatus.DONE in statuses.values():
            # "Finished work is never run again": if the nodes that had begun to finish are gone, the job is over.
            return self.propose(transitions.close(record, ""))
        silent = sorted(
            node for node, status_of in statuses.items() if status_of in (MemberStatus.LOST, MemberStatus.UNHEARD)
        )
        return self.propose(transitions.take_over(record, own.member, tuple(silent)))

    def _abandoned(self, record: Round, own: Report) -> bool:
        """Return whether it is certain that no member of the record can lead.

        A newcomer that cannot reach the members may itself be at fault, so its links prove nothing unless they were up
        before. Otherwise the leases of the members must have expired; in a store without leases the leader's count must
        have stood still for twice the tolerance, as far as the store answered.
        """
        certain = (MemberStatus.WITHDRAWN, MemberStatus.DONE)
        if all(self._liveness.gone(m.node) or self._status_of(m, own) in certain for m in record.members):
            return True
        if self._leader_beat is None or self._liveness.leased:
            return False
        _, since, until = self._leader_beat
        return until - since >= 2 * self._tolerance_s

    def _beat(self, reads: bool) -> list[Effect]:
        if self._now < self._beat_at:
            return []
        self._beat_at = self._now + self._interval_s
        counted = not self._liveness.leased  # otherwise the leases say which nodes are left
        if self.leadership.leading:
            return [do.Say(None, Beat()), *([do.BeatAsLeader()] if counted else [])]
        if self._following is not None and self._link_up:
            return [do.Say(self._following, Beat())]
        return [do.ReadLeaderBeat()] if reads and counted else []
