"""How long this agent's workers may go on without hearing from it again. `softrun.runtime.channel.allowance` is the
workers' side of this.

An agent that is stopped, or whose host is cut off, cannot tell its workers that the others have gone on without them.
So it tells them in advance until when nobody can have gone on, and keeps moving that time forward.

In etcd that is the time at which its lease may expire (`softrun.agent.core.lease_clock`). Without etcd the agents grant
each other leases (`softrun.agent.consensus.touch`).

One case is not covered: a step that begins in time, takes longer than the rest of the tolerance, and uses no group.
"""

from __future__ import annotations

from math import inf

from softrun.agent.core.lease_clock import LeaseClock
from softrun.agent.protocol.effects import Allow

HOLD = 0.75
"""After this part of the tolerance no further step is completed. The rest is for the step under way."""

NO_BOUND = Allow(0.0, 0.0)


class Allowance:
    """`shared`: whether the job may have other nodes. If not, the workers may go on for ever."""

    def __init__(self, shared: bool, interval_s: float, tolerance_s: float) -> None:
        self._shared = shared
        self._interval_s = interval_s
        self._tolerance_s = tolerance_s
        self._allowed = NO_BOUND

    def advance(self, until: float, lease: LeaseClock) -> list[Allow]:
        """Return the new allowance, if it is time for one. `until`: when the leases granted by other agents end."""
        wanted = self._wanted(until, lease)
        moved = wanted.hold_at - self._allowed.hold_at
        if wanted == self._allowed or (0 < moved < self._interval_s / 2):
            return []  # the next beat is soon enough
        self._allowed = wanted
        return [wanted]

    def _wanted(self, until: float, lease: LeaseClock) -> Allow:
        if lease.leased:
            return Allow(*lease.bounds) if self._shared else NO_BOUND
        if not self._shared or until == inf:
            return NO_BOUND
        if until == -inf:
            return self._allowed
        return Allow(until - (1 - HOLD) * self._tolerance_s, until)
