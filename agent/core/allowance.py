"""For how long this agent's workers may go on without another word of it. `softrun.runtime.channel.allowance` is their
end.

An agent that is stopped, or whose host is cut off, cannot tell its workers that the others have gone on without them.
So it tells them beforehand until when nobody can have, and moves that on.

With leases that is until the lease may have expired (`softrun.agent.core.lease_clock`). Without, the others take this
agent for dead when they have not heard it for the tolerance, so not before the tolerance has passed since it last
*said* something. What it says may be lost on the way, and it cannot see that; but then it hears nothing either. So it
counts from the last time at which it had both said something and heard: a follower its leader, a leader a member, or
the store, without which nobody can go on. A world of its own needs nobody to be heard.

What cannot be had: a network that loses what this agent says and brings what it is to hear; a step that is begun in
time and takes longer than is left of the tolerance, and in which no group is used.
"""

from __future__ import annotations

from math import inf

from softrun.agent.core.lease_clock import LeaseClock
from softrun.agent.protocol.effects import Allow

HOLD = 0.75
"""The part of the tolerance after which no further step is completed: the rest is for the one that is under way."""

NO_BOUND = Allow(0.0, 0.0)


class Allowance:
    """`shared`: whether others may ever be in this job; if not, there is no bound."""

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
        """It has heard another, or the store."""
        self._heard_at = now

    def advance(self, alone: bool, lease: LeaseClock) -> list[Allow]:
        """What is new. `alone`: there is nobody else in the world."""
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
