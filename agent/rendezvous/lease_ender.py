"""Whose lease in the store an agent ends before it expires, so that a silent host is left behind without a long wait.

It ends the lease of a member that it has missed for the tolerance: a leader those of its followers, a follower that of
its leader. The one that is missed has stopped its workers by then, because it has lost the leases that agents grant
each other (`softrun.agent.consensus.touch`). If two nodes miss each other the store decides: it takes nothing from an
agent whose own lease has been ended.

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
        self._again_at: dict[tuple[str, int], float] = {}  # when to ask again for the end of a lease
        self.deadline: float | None = None
        """When a member is missed for long enough, unless it is heard until then."""

    def advance(self, record: Round, leader: Member, now: float) -> list[EndLease]:
        """Return the leases to end now. `leader` is the one of this record, as far as this agent knows."""
        liveness = self._liveness
        if not (liveness.due(now) or (self.deadline is not None and now >= self.deadline)):
            return []  # most beats
        self.deadline = None
        if not liveness.leased or self._node not in record.by_node:
            return []
        living = [m.node for m in record.members if not liveness.gone(m.node)]
        if leader.node == self._node:
            missed = [node for node in living if node != self._node and liveness.missed(node, now)]
            if 2 * len(missed) > len(living):
                return []
        else:
            missed = [leader.node] if self._has_waited(leader.node, living, now) else []
        by = record.by_node[self._node].lease_number
        return [EndLease(*lease, by) for lease in map(self._lease, missed) if self._is_due(*lease, now)]

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

    def _is_due(self, node: str, lease_number: int, now: float) -> bool:
        report = self._reports.get(node)
        if report is None or not report.asks:
            return False
        again_at = self._again_at.get((node, lease_number), now)
        is_due = now >= again_at
        if is_due:
            again_at = now + self._liveness.tolerance_s
            asked = {lease: at for lease, at in self._again_at.items() if at > now}
            self._again_at = {**asked, (node, lease_number): again_at}
        self.deadline = again_at
        return is_due
