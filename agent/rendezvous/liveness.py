"""Which nodes are dead, judged only by the reader's own clock.

A peer is dead if its process is certainly gone (it said so itself, or what outlives it did), if its host refuses a
link to it, or if it was watched and not heard within the tolerance. Only the first is certain. Only peers that have
reason to speak are watched: a leader watches all members, a follower watches its leader. The silence of any other node
means nothing.

If the store has leases, silence proves nothing. A lease that has expired or was ended does
(`softrun.agent.rendezvous.lease_ender`), because its owner has stopped its workers by then. It remains a proof until
the owner speaks under a later lease.

The tolerance is longer while beats come late, as when all machines are busy, and while answers take long, as on a slow
network. By how much halves every ten seconds. But nobody is dead who is owed more time by a promise of this agent's
(`softrun.agent.consensus.leases`).

A reader that was itself away (stopped, swapped out) cannot tell its own absence from the others' silence, so it grants
a new tolerance to every peer that was not dead before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf

LATE_HALF_LIFE_S = 10.0
ANSWERS = 5


class Liveness:
    """When each node was last heard, and so which are dead. Times are the engine's, in seconds.

    `owed` returns until when this agent has promised not to take a node for dead.
    """

    def __init__(
        self, interval_s: float, tolerance_s: float, now: float, owed: Callable[[str], float] = lambda _node: -inf
    ) -> None:
        self._owed = owed
        self.interval_s = interval_s
        self.tolerance_s = tolerance_s
        self._last_look = now
        self._heard_at: dict[str, float] = {}
        self._watched_since: dict[str, float] = {}
        self._gone: set[str] = set()
        self._refused: dict[str, float] = {}  # and until when that is believed if nobody else leads
        self.leased = False
        self._lease_numbers: dict[str, int] = {}
        self._expired: dict[str, int] = {}  # the last expired lease_number of each node
        self._bound = -inf  # nobody becomes overdue before this; may be too early, never too late
        self._late_s = 0.0  # how late living peers were lately, at most
        self._late_since = now
        self._answers: dict[str, deque[tuple[float, float]]] = {}  # when the last of each node came, and after how long

    def look(self, now: float) -> bool:
        """Call first at every observation. Returns whether this agent itself was away since the last call."""
        away = self.was_away(now)
        if away:
            for node in self._watched_since:
                if not self.missed(node, self._last_look):
                    self._watched_since[node] = now
        self._last_look = now
        if self._late_s and now - self._late_since >= LATE_HALF_LIFE_S:
            self._late_s, self._late_since = self._late_s / 2 if self._late_s > self.interval_s / 8 else 0.0, now
            self._bound = -inf
        return away

    def was_away(self, now: float) -> bool:
        """Return whether this agent itself was away since the last look: the engine looks once per interval or more."""
        return now - self._last_look > 2 * self.interval_s

    def watch(self, node: str, now: float) -> None:
        """Expect to hear `node` within the tolerance, from now on."""
        if node not in self._watched_since:
            self._watched_since[node] = now
            self._bound = min(self._bound, now + self.tolerance_s)

    def stop_watching(self, now: float) -> None:
        """Watch nobody any more: no peer has reason to speak to this agent. Peers that are dead by now stay dead."""
        self._watched_since = {node: at for node, at in self._watched_since.items() if self.missed(node, now)}

    def forgive_silence(self) -> None:
        """Watch nobody any more, and take no peer for overdue.

        Another agent leads, or has made a new round, and for it the members were alive.
        """
        self._watched_since.clear()
        self._refused.clear()

    def heard(self, node: str, now: float) -> None:
        """Note that `node` was heard at `now`."""
        before = self._heard_at.get(node, -inf)
        if before >= self._watched_since.get(node, inf):  # the first word may be late because of what came before it
            self._was_late(now - before - 2 * self.interval_s, now)
        self._heard_at[node] = now
        self._gone.discard(node)
        self._refused.pop(node, None)
        if node in self._watched_since:
            self._bound = min(self._bound, now + self.tolerance_s)  # it may have been overdue until now

    def heard_since(self, node: str, at: float) -> bool:
        """Return whether `node` was heard at that time or later."""
        return self._heard_at.get(node, -inf) >= at

    def answered(self, node: str, after_s: float, now: float) -> None:
        """Note how long `node` took to answer a beat. It counts as slow if all its last answers were.

        What a network kept back arrives at once when it is whole again: of such answers only the quickest counts.
        """
        answers = self._answers.setdefault(node, deque(maxlen=ANSWERS))
        at = now
        if answers and now - answers[-1][0] < self.interval_s / 2:
            at, before_s = answers.pop()
            after_s = min(after_s, before_s)
        answers.append((at, after_s))
        if len(answers) == ANSWERS:
            slow_s = min(after_s for _, after_s in answers)
            self._was_late(2 * (slow_s - self.interval_s), now)  # a promise needs both ways, too

    def _was_late(self, late_s: float, now: float) -> None:
        if self._late_s < late_s < self.tolerance_s:
            self._late_s, self._late_since = late_s, now

    @property
    def promise_s(self) -> float:
        """For how long after it was heard this agent promises not to take a peer for dead."""
        return self.tolerance_s + self._late_s

    def mark_gone(self, node: str) -> None:
        """Note that the process of `node` is certainly gone, until it is heard again."""
        self._gone.add(node)

    def mark_back(self, node: str) -> None:
        """Note that others have taken `node` in again, so its process was not gone."""
        self._gone.discard(node)

    def mark_refused(self, node: str, now: float) -> None:
        """Note that a link to `node` was refused: it counts as dead until it is heard again, which proves nothing."""
        self._refused[node] = now + self.tolerance_s

    def forgive_refusals(self, now: float) -> bool:
        """Believe no refusal that is old: whoever was refused is to be dialled again. Returns whether there is any."""
        old = [node for node, until in self._refused.items() if until <= now]
        for node in old:
            del self._refused[node]
        return bool(old)

    @property
    def refusals_until(self) -> float | None:
        """When the first refusal is old."""
        return min(self._refused.values(), default=None)

    def holds(self, node: str, lease_number: int) -> None:
        """Note the lease that `node` has, as it says itself or as the record says."""
        self._lease_numbers[node] = max(lease_number, self._lease_numbers.get(node, 0))

    def expire(self, node: str, lease_number: int) -> None:
        """Note that this lease of `node` has expired."""
        self._expired[node] = max(lease_number, self._expired.get(node, 0))

    def gone(self, node: str) -> bool:
        """Return whether the process of `node` has certainly ended, or its newest known lease has expired."""
        return node in self._gone or (node in self._expired and self._expired[node] >= self._lease_numbers.get(node, 0))

    def dead(self, node: str, now: float) -> bool:
        """Return whether `node` is gone, refuses, or was watched and silent for the tolerance."""
        return self.gone(node) or node in self._refused or (not self.leased and self.missed(node, now))

    def only_refused(self, node: str, now: float) -> bool:
        """Return whether `node` counts as dead for no other reason than that its host refuses."""
        return node in self._refused and not self.gone(node) and (self.leased or not self.missed(node, now))

    def missed(self, node: str, now: float) -> bool:
        """Return whether `node` was watched and silent for the tolerance."""
        missed_at = self.missed_at(node)
        return missed_at is not None and now >= missed_at

    def quiet(self, node: str, now: float) -> bool:
        """Return whether `node` was watched and silent for half of the tolerance: it may turn out to be dead."""
        since = self._watched_since.get(node, inf)
        return now - max(since, self._heard_at.get(node, since)) >= self.tolerance_s / 2

    def missed_at(self, node: str) -> float | None:
        """Return when `node` is missed, or has been since, unless it is heard before; None if it is not watched."""
        return self._due_at(node) if node in self._watched_since else None

    def lease_number(self, node: str) -> int:
        """Return the number of its newest known lease."""
        return self._lease_numbers.get(node, 0)

    def silent(self, node: str, now: float) -> bool:
        """Return whether `node` is gone, refuses or was not heard within the tolerance, whatever reason it had."""
        unheard = node not in self._heard_at or now - self._heard_at[node] >= self.tolerance_s
        return self.gone(node) or node in self._refused or unheard

    def due(self, now: float) -> bool:
        """Return whether a peer may have become overdue since the last call of `deadline`."""
        return now >= self._bound

    def deadline(self) -> float | None:
        """Return a time no later than when the next watched peer becomes overdue; None if none can."""
        # Hearing a peer only moves its time back, so a bound that lies ahead stays good, and no beat needs a search.
        if self._bound <= self._last_look:
            due = (self._due_at(node) for node in self._watched_since if node not in self._gone)
            self._bound = min((at for at in due if at > self._last_look), default=inf)
        return self._bound if self._bound < inf else None

    def _due_at(self, node: str) -> float:
        since = self._watched_since[node]
        due_at = max(since, self._heard_at.get(node, since)) + self.tolerance_s + 2 * self._late_s
        return max(due_at, self._owed(node))
