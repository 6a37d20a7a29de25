"""Who is dead, judged by the reader's own monotonic clock alone.

A peer is dead when its process is certainly gone (the kernel closed its link and its port refuses a new one), or when
it was to be heard and was not for longer than the tolerance. Only nodes that have reason to speak are watched: a leader
watches all members, a follower watches its leader. Silence of anybody else means nothing.

If the store has leases, silence proves nothing. An expired lease does, since its owner has stopped its workers by
then. It stays a proof until the owner speaks under another lease, a later one of the same owner.

A reader that was itself away (stopped, swapped out) cannot tell its own absence from the others' silence, so it grants
a fresh tolerance to everyone who was not dead before.
"""

from __future__ import annotations

from math import inf


class Liveness:
    """When each node was heard last. Times are the engine's, in seconds."""

    def __init__(self, interval_s: float, tolerance_s: float, now: float) -> None:
        self.interval_s = interval_s
        self.tolerance_s = tolerance_s
        self._last_look = now
        self._heard_at: dict[str, float] = {}
        self._watched_since: dict[str, float] = {}
        self._gone: set[str] = set()
        self.leased = False
        self._lease_numbers: dict[str, int] = {}
        self._expired: dict[str, int] = {}  # the last lease_number of each node that has expired
        self._bound = -inf  # nobody becomes overdue before; may be too early, never too late

    def look(self, now: float) -> bool:
        """Call before anything else at every observation. Was this agent itself away since the last?"""
        # The engine looks at least once an interval, so a longer gap is this agent's own.
        away = now - self._last_look > 2 * self.interval_s
        if away:
            for node in self._watched_since:
                if not self._overdue(node, self._last_look):
                    self._watched_since[node] = now
        self._last_look = now
        return away

    def watch(self, node: str, now: float) -> None:
        """From now on `node` must be heard within the tolerance."""
        if node not in self._watched_since:
            self._watched_since[node] = now
            self._bound = min(self._bound, now + self.tolerance_s)

    def stop_watching(self, now: float) -> None:
        """Nobody has reason to speak to this agent any more. Who is dead by now stays so."""
        self._watched_since = {node: at for node, at in self._watched_since.items() if self._overdue(node, now)}

    def forgive_silence(self) -> None:
        """Somebody has made a new round: its members were alive for them, and nobody is overdue any more."""
        self._watched_since.clear()

    def heard(self, node: str, now: float) -> None:
        """`node` has said something."""
        self._heard_at[node] = now
        self._gone.discard(node)
        if node in self._watched_since:
            self._bound = min(self._bound, now + self.tolerance_s)  # it may have been overdue until now

    def mark_gone(self, node: str) -> None:
        """The process of `node` is certainly gone."""
        self._gone.add(node)

    def holds(self, node: str, lease_number: int) -> None:
        """`node` has said, or others have agreed, that this is its lease."""
        self._lease_numbers[node] = max(lease_number, self._lease_numbers.get(node, 0))

    def expire(self, node: str, lease_number: int) -> None:
        """That lease of `node` has expired."""
        self._expired[node] = max(lease_number, self._expired.get(node, 0))

    def gone(self, node: str) -> bool:
        """Whether its process or its lease is certainly gone."""
        return node in self._gone or (node in self._expired and self._expired[node] >= self._lease_numbers.get(node, 0))

    def dead(self, node: str, now: float) -> bool:
        """Whether it is gone, or was silent for longer than the tolerance while it was watched."""
        return self.gone(node) or self._overdue(node, now)

    def silent(self, node: str, now: float) -> bool:
        """Was nothing heard of it within the tolerance, whether it had reason to speak or not?"""
        return self.gone(node) or node not in self._heard_at or now - self._heard_at[node] >= self.tolerance_s

    def due(self, now: float) -> bool:
        """May somebody have become overdue since `deadline` was asked?"""
        return now >= self._bound

    def deadline(self) -> float | None:
        """No later than when the next peer that is watched will have been silent for too long."""
        # Peers are only ever heard later, so a bound that lies ahead stays good: nothing is searched at each beat.
        if self._bound <= self._last_look:
            due = (self._due_at(node) for node in self._watched_since if node not in self._gone)
            self._bound = min((at for at in due if at > self._last_look), default=inf)
        return self._bound if self._bound < inf and not self.leased else None

    def _due_at(self, node: str) -> float:
        since = self._watched_since[node]
        return max(since, self._heard_at.get(node, since)) + self.tolerance_s

    def _overdue(self, node: str, now: float) -> bool:
        return not self.leased and node in self._watched_since and now >= self._due_at(node)
