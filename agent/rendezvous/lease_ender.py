"""Whose lease in the store an agent ends before it expires, so that a silent host is left behind without a long wait.

It ends the lease of a member that it has missed for the tolerance: a leader those of its followers, a follower that of
its leader. The one that is missed has stopped its workers by then, because it has lost the leases that agents grant
each other (`softrun.agent.consensus.leases`). It is granted no other, even if it is heard again before the store has
ended its lease. If two nodes miss each other the store decides: it takes nothing from an agent whose own lease has been
ended.

A suspicion is about one record. Under the next one another agent may lead, and have granted the node more. So the store
ends no lease if there is a later record than the one under which its node was missed; until this agent must have heard
of an end before that, it goes on to grant nothing.

A leader comes first: it misses only those that fell silent, a follower perhaps a leader that all others hear. So a
follower gives it time, and those before it in the line, too. A leader that hears less than half of the members ends no
lease: it may be the one that is cut off.

Workers that never ask for their world do not stop by themselves, and under hard a wrong suspicion costs all nodes a
restart. There the lease has to expire.
"""

from __future__ import annotations

from collections.abc import Mapping

from softrun.agent.protocol.effects import EndLease
from softrun.agent.protocol.model import Member, Report, Round
from softrun.agent.rendezvous.liveness import Liveness

BEATS_APART = 2  # how much later than the one before it the next agent in line acts


class LeaseEnder:
    """One agent's choice. Times are the engine's, in seconds; `reports` has what each node has said last."""

    def __init__(self, node: str, liveness: Liveness, reports: Mapping[str, Report]) -> None:
        self._node = node
        self._liveness = liveness
        self._reports = reports
        self._again_at: dict[tuple[str, int], float] = {}  # the leases that are to end, and when to ask again
        self._unheard: dict[tuple[str, int], float] = {}  # asked for before, and until when that may be heard of
        self._by = 0  # this agent's own lease, by which it asks
        self._version = 0  # of the record under which it misses them
        self.deadline: float | None = None
        """When a member is missed for long enough, unless it is heard until then, or to ask again."""

    def is_ending(self, node: str) -> bool:
        """Return whether this agent has asked for the end of the newest known lease of `node`, which may yet come."""
        lease = self._lease(node)
        return lease in self._again_at or lease in self._unheard

    def advance(self, record: Round, leader: Member, now: float) -> list[EndLease]:
        """Return the leases to end now. `leader` is the one of this record, as far as this agent knows."""
        liveness = self._liveness
        news = record.version != self._version
        if not (news or liveness.due(now) or (self.deadline is not None and now >= self.deadline)):
            return []  # most beats
        self.deadline = None
        own = record.by_node.get(self._node)
        if not liveness.leased or own is None or not record.votes(self._node):
            return []
        if news or own.lease_number != self._by:
            self._by, self._version = own.lease_number, record.version
            self._unheard |= dict.fromkeys(self._again_at, now + liveness.tolerance_s)
            self._again_at.clear()  # the store takes nothing by the one before
        self._unheard = {lease: until for lease, until in self._unheard.items() if until > now}
        living = [m.node for m in record.members if not liveness.gone(m.node)]
        self._again_at = {lease: at for lease, at in self._again_at.items() if lease == self._lease(lease[0])}
        for node in self._missed(leader.node, living, now):
            report = self._reports.get(node)
            if report is not None and report.asks:
                self._again_at.setdefault(self._lease(node), now)
        due = [lease for lease, at in self._again_at.items() if lease[0] in living and now >= at]
        self._again_at.update(dict.fromkeys(due, now + liveness.tolerance_s))
        wanted = (self.deadline, *self._again_at.values(), *self._unheard.values())
        self.deadline = min((at for at in wanted if at is not None and at > now), default=None)
        return [EndLease(*lease, self._by, self._version) for lease in due]

    def _missed(self, leader: str, living: list[str], now: float) -> list[str]:
        """Return the nodes whose leases this agent is to end, because it misses them."""
        if leader != self._node:
            return [leader] if self._has_waited(leader, living, now) else []
        missed = [node for node in living if node != self._node and self._liveness.missed(node, now)]
        return missed if 2 * len(missed) <= len(living) else []

    def _has_waited(self, leader: str, living: list[str], now: float) -> bool:
        """Whether it is this agent's turn to act for all that follow the leader."""
        missed_at = self._liveness.missed_at(leader)
        if missed_at is None or now < missed_at:
            return False
        before = living.index(self._node) - (living.index(leader) < living.index(self._node))
        turn_at = missed_at + (before + 1) * BEATS_APART * self._liveness.interval_s
        if now < turn_at:
            self.deadline = turn_at
        return now >= turn_at

    def _lease(self, node: str) -> tuple[str, int]:
        return node, self._liveness.lease_number(node)
