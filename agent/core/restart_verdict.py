"""Whether a failure of this node's workers costs it one of its restarts.

"Decrease max_restarts" (RFC, "Worker failures", option 1) is for a failure of the node's own. One that the death of a
peer explains costs nothing: a worker that fails when its peer is lost is not to blame. Since the death may become known
a little later than the failure, the verdict waits for it.
"""

from __future__ import annotations

from softrun.agent.protocol.effects import Failure


class RestartVerdict:
    """Counts what a node's own failures cost. `wait_s`: how long a peer's death is waited for, in seconds."""

    def __init__(self, max_restarts: int, wait_s: float) -> None:
        self.restarts_left = max_restarts
        self.failures: list[Failure] = []
        """Of the last incarnation: those before it were answered by a restart."""
        self.charges = False
        """The restart that is under way answers a failure of this node's own."""
        self._wait_s = wait_s
        self._since = 0.0
        self._loss_at: float | None = None

    def peer_lost(self, now: float) -> None:
        """A peer's death became known."""
        self._loss_at = now

    def failed(self, failure: Failure) -> None:
        """A worker of this node has failed."""
        self.failures.append(failure)

    def begin(self, *, charges: bool, now: float) -> None:
        """A restart is under way."""
        self.charges, self._since = charges, now

    def due_at(self, *, has_peers: bool) -> float:
        """When it is certain that no peer's death explains the failure."""
        return self._since + (self._wait_s if self.charges and has_peers else 0.0)

    def is_excused(self) -> bool:
        """A peer was lost at about the time at which the workers failed: its death is the likely cause."""
        return self._loss_at is not None and self._loss_at >= self._since - self._wait_s

    def charge(self) -> None:
        """The restart that is under way costs one."""
        self.restarts_left -= 1

    def settle(self) -> None:
        """The workers are stopped and start again: what failed was answered."""
        self.failures.clear()
