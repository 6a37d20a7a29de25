"""How long this agent's workers may go on without hearing from it again. `softrun.runtime.channel.allowance` is the
workers' side of this.

An agent that is stopped, or whose host is cut off, cannot tell its workers that the others have gone on without them.
So it tells them in advance until when nobody can have gone on, and keeps moving that time forward.

The agents grant each other leases for that (`softrun.agent.consensus.leases`). In etcd they may also go on without an
agent whose lease there has expired (`softrun.agent.rendezvous.lease_clock`), so it is the lease that ends first that
counts.

One case is not covered: a step that begins in time, takes longer than the rest of the tolerance, and uses no group.
"""

from __future__ import annotations

from math import inf

from softrun.agent.protocol.effects import Allow
from softrun.agent.rendezvous.lease_clock import LeaseClock

HOLD = 0.75
"""After this part of the tolerance no further step is completed. The rest is for the step under way."""

NO_BOUND = Allow(0.0, 0.0)
PAST = 1e-6
"""Before anything: 0 would be no bound."""


class Allowance:
    """`shared`: whether the job may have other nodes. If not, the workers may go on for ever.

    But for a store with leases, where a node that waits for a place gets that of one whose lease has expired.
    """

    def __init__(self, shared: bool, tolerance_s: float) -> None:
        self._shared = shared
        self._tolerance_s = tolerance_s
        self._allowed = NO_BOUND

    def advance(self, until: float, lease: LeaseClock, entered_at: float | None = None) -> list[Allow]:
        """Return the new allowance, if there is one. `until`: when the leases granted by other agents end.

        `entered_at`: when this node entered its world, if it has one whose other agents grant leases.
        """
        wanted = self._wanted(until, lease, entered_at)
        if wanted == self._allowed:
            return []
        self._allowed = wanted
        return [wanted]

    def _wanted(self, until: float, lease: LeaseClock, entered_at: float | None) -> Allow:
        if not (self._shared or lease.leased):
            return NO_BOUND
        if until == -inf and not lease.leased:  # nobody counts on this node yet, so no step may be completed
            return Allow(PAST, entered_at + self._tolerance_s) if entered_at is not None else self._allowed
        hold_at, leave_at = lease.bounds if lease.leased else (inf, inf)
        hold_at, leave_at = min(hold_at, until - (1 - HOLD) * self._tolerance_s), min(leave_at, until)
        return Allow(max(hold_at, PAST), max(leave_at, PAST)) if leave_at < inf else NO_BOUND
