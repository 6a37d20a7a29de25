"""How long the store has owed this agent an answer. A store that owes it for too long is lost.

A store with leases is not judged by its silence: it comes back, and until then the lease says what may go on.
"""

from __future__ import annotations

from collections.abc import Iterable

from softrun.agent.protocol.effects import BeatAsLeader, Effect, Propose, ReadLeaderBeat

_ASKS_THE_STORE = (Propose, BeatAsLeader, ReadLeaderBeat)


class StoreSilence:
    """`timeout_s`: how long the store may owe an answer, in seconds."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._asked_at: float | None = None

    def asks(self, effects: Iterable[Effect], now: float) -> None:
        """Note whether one of these effects asks the store for something."""
        if self._asked_at is None and any(isinstance(effect, _ASKS_THE_STORE) for effect in effects):
            self._asked_at = now

    def answered(self) -> None:
        """The store has answered."""
        self._asked_at = None

    def was_away(self, now: float) -> None:
        """This agent did not run for a while: an answer may be waiting, so the time begins again."""
        if self._asked_at is not None:
            self._asked_at = now

    def deadline(self, *, leased: bool) -> float | None:
        """When the store counts as lost, unless it answers before; None: it owes nothing, or is `leased`."""
        return None if self._asked_at is None or leased else self._asked_at + self._timeout_s
