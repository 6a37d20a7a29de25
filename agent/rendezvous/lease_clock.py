"""This agent's lease in the store: when to renew it, and when it may have expired.

By this agent's own clock, the lease stands at least for its whole time after the last renewal was *asked* for: the
store begins to count later. The workers must have stopped shortly before that, because the others may then hear that
this agent is dead, and take its place. An unreachable store changes nothing: from here it looks just like a network
that has cut off this agent alone.
"""

from __future__ import annotations

from math import inf

RENEWALS = 5
"""How many times a lease is renewed in its time, so as many renewals may be slow or lost before the workers stop."""


class LeaseClock:
    """One agent's lease. In a store without leases `lease_number` stays 0, and the agent is always sure."""

    def __init__(self) -> None:
        self.lease_number = 0
        self._until = inf
        self._granted_s = 0.0
        self._renew_at: float | None = None
        self._doubted_at: float | None = None

    def renewed(self, until: float, lease_number: int, granted_s: float, now: float) -> bool:
        """The lease was renewed. Return whether it replaces an earlier lease, which has expired."""
        lapsed = self.lease_number not in (0, lease_number)
        self.lease_number, self._until, self._granted_s = lease_number, until, granted_s
        if self.sure(now):  # an answer can be so late that it is worth nothing
            self._doubted_at = None
        self._renew_at = until - granted_s + granted_s / RENEWALS
        return lapsed

    def ended(self, lease_number: int, now: float) -> None:
        """Note that another agent has ended a lease of this one: it takes a new one at once."""
        if lease_number == self.lease_number:
            self._renew_at = now

    @property
    def leased(self) -> bool:
        """Whether this agent has a lease: the store has leases, and has granted one."""
        return self.lease_number > 0

    def sure(self, now: float) -> bool:
        """Whether it is certain that nobody takes this agent for dead because of its lease."""
        return now < self._until - self._margin_s

    @property
    def bounds(self) -> tuple[float, float]:
        """Until when it is sure, and when the workers must be gone, unless it is renewed before."""
        return self._until - self._margin_s, self._until - self._last_s

    def due(self, now: float) -> bool:
        """Whether it is time to ask for a renewal. If so, the next one is due an interval later."""
        if self._renew_at is None or now < self._renew_at:
            return False
        self._renew_at = now + self._granted_s / RENEWALS
        return True

    def doubt(self, now: float) -> None:
        """It is no longer sure: the workers were told to stop."""
        self._doubted_at = now

    @property
    def doubted(self) -> bool:
        """Whether the workers were stopped because the lease may expire, and it was not renewed since."""
        return self._doubted_at is not None

    def expiring(self, now: float) -> bool:
        """Whether it is time to end the workers that have not stopped. They get as long if the agent did not run."""
        ends_at = self._ends_at()
        return ends_at is not None and now >= ends_at

    def deadline(self, now: float) -> float | None:
        """When something is due without any news."""
        if self._renew_at is None:
            return None
        ends_at = self._ends_at() or self._until - self._margin_s
        return min(self._renew_at, ends_at) if ends_at > now else self._renew_at

    def _ends_at(self) -> float | None:
        return None if self._doubted_at is None else self._doubted_at + self._margin_s - self._last_s

    @property
    def _margin_s(self) -> float:
        """The time that the workers need to hear that they must stop and to leave their world."""
        return min(2.0, self._granted_s / 4)

    @property
    def _last_s(self) -> float:
        """The time that the kernel needs to end them."""
        return min(0.5, self._granted_s / 8)
