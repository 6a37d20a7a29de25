"""Whether a failure of this node's workers costs it one of its restarts.

"Decrease max_restarts" (RFC, "Worker failures", option 1) is meant for a node's own failures. If a peer's death
explains the failure, it costs nothing: a worker that fails because its peer is gone is not to blame. The death may
become known a little later than the failure, so the verdict waits for it.
"""

from __future__ import annotations

from softrun.agent.protocol.effects import Failure


class RestartVerdict:
    """Counts the restarts that a node has left. `wait_s`: how long to wait for news of a peer's death, in seconds."""

    def __init__(self, max_restarts: int, wait_s: float) -> None:
        self.restarts_left = max_restarts
        self.failures: list[Failure] = []
        """The failures since the last restart, which answered those before it."""
        self.charges = False
        """Whether the restart under way was caused by a failure on this node."""
        self.stands = False
        """Whether a failure is answered by no restart, because others have finished: the node has failed in the end."""
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
        """When to stop waiting for a peer's death that explains the failure."""
        return self._since + (self._wait_s if self.charges and has_peers else 0.0)

    def is_excused(self) -> bool:
        """Whether a peer was lost at about the time of the failure: its death is then the likely cause."""
        return self._loss_at is not None and self._loss_at >= self._since - self._wait_s

    def charge(self) -> None:
        """Count the restart under way."""
        self.restarts_left -= 1

    def settle(self) -> None:
        """The workers start again: the failures were answered."""
        self.failures.clear()
