"""How long this agent's workers may go on without hearing from it again. `softrun.runtime.channel.allowance` is the
workers' side of this.

An agent that is stopped, or whose host is cut off, cannot tell its workers that the others have gone on without them.
So it tells them in advance until when nobody can have gone on, and keeps moving that time forward.

With leases, that is the time at which its lease may expire (`softrun.agent.core.lease_clock`). Without leases, the
others take this agent for dead when they have not heard from it for the beat tolerance, which cannot be earlier than
the tolerance after it last *said* something. What it says may be lost on the way without its knowing, but then it
hears nothing either. So it counts from the last time by which it had both said something and heard something: a
follower hears its leader, and a leader hears a member or the store, without which nobody can go on. An agent that is
alone in its world need hear nobody.

Two cases are not covered: a network that loses what this agent says and still delivers what it should hear; and a step
that begins in time, takes longer than the rest of the tolerance, and uses no group.
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
        self._said_at = self._heard_at = -inf
        self._allowed = NO_BOUND

    def said(self, now: float) -> None:
        """This agent has said something to another."""
        self._said_at = now

    def heard(self, now: float) -> None:
        """This agent has heard from another, or from the store."""
        self._heard_at = now

    def advance(self, alone: bool, lease: LeaseClock) -> list[Allow]:
        """Return the new allowance, if it is time for one. `alone`: the world has no other node."""
        wanted = self._wanted(alone, lease)
        moved = wanted.hold_at - self._allowed.hold_at
        if wanted == self._allowed or (0 < moved < self._interval_s / 2):
            return []  # the next beat is soon enough
        self._allowed = wanted
        return [wanted]

    def _wanted(self, alone: bool, lease: LeaseClock) -> Allow:
        if not self._shared:
            return NO_BOUND
        if lease.leased:
            return Allow(*lease.bounds)
        since = self._said_at if alone else min(self._said_at, self._heard_at)
        if since == -inf:
            return self._allowed
        return Allow(since + HOLD * self._tolerance_s, since + self._tolerance_s)
