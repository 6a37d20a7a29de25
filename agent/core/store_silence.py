"""Since when the store owes this agent an answer. A store that does not answer for too long is lost.

A store that has leases is not judged by its silence: it comes back, and until then the lease says what may go on.
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
        """One of these may ask the store for something."""
        if self._asked_at is None and any(isinstance(effect, _ASKS_THE_STORE) for effect in effects):
            self._asked_at = now

    def answered(self) -> None:
        """It owes nothing any more."""
        self._asked_at = None

    def was_away(self, now: float) -> None:
        """This agent did not run for a while, and an answer may have come meanwhile."""
        if self._asked_at is not None:
            self._asked_at = now

    def deadline(self, *, leased: bool) -> float | None:
        """When the store is lost, unless it answers before."""
        return None if self._asked_at is None or leased else self._asked_at + self._timeout_s
