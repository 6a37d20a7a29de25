"""What a witness knows of the job: whoever is about to found one asks it first.

A founder that is cut off from the others, or at whose endpoints nobody of the job is left, cannot tell that from a job
that was never begun. The witness can: it holds the record of the job that it serves, with the addresses of its members.
One that cannot be had, or that does not answer, holds nobody up for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from softrun.agent.protocol import effects as do
from softrun.agent.protocol.effects import Effect
from softrun.agent.protocol.model import Address

GIVE_UP_S = 1.0
ANSWER_S = 1.0
LASTS_S = 5.0  # what it has said is that old at the most when the job is founded


class Inquiry:
    """One agent's question. `address` is where the witness listens; None: there is none. Times are the engine's."""

    def __init__(self, address: Address | None) -> None:
        self._address = address
        self._node = ""  # who was found there, and is asked
        self._until = inf  # when to go on without an answer
        self._closed_at = -inf
        self.is_open = False
        """Whether it looks for the witness, or waits for its answer."""

    def is_settled(self, now: float) -> bool:
        """Whether all that the witness knows has been said lately, or it cannot be had."""
        return self._address is None or now < self._closed_at + LASTS_S

    def advance(self, asks: bool, now: float) -> list[Effect]:
        """Return what is due. `asks`: this agent would found the job now, if the witness knows of none."""
        if self.is_open and now >= self._until:
            return self._close(now)
        if self._address is None or not asks or self.is_open or self.is_settled(now):
            return []
        self.is_open = True
        return [do.Seek(self._address, GIVE_UP_S, listens=False)]

    def found(self, node: str, hello: Sequence[Effect], now: float) -> Sequence[Effect]:
        """`node` is at the witness's address. Returns what to say there: `hello`."""
        self._node, self._until = node, now + ANSWER_S
        return hello

    def not_found(self, now: float) -> None:
        """Nobody is there who could be asked."""
        self._close(now)

    def is_of(self, node: str) -> bool:
        """Whether `node` is the witness that is to answer."""
        return node != "" and node == self._node

    def answered(self, now: float) -> list[Effect]:
        """The witness has said which record it holds, after showing it if this agent lacks it."""
        return self._close(now)

    def drop(self) -> list[Effect]:
        """This agent has a job by now."""
        return self._close(-inf)

    def _close(self, now: float) -> list[Effect]:
        node, self._node = self._node, ""
        self.is_open, self._until, self._closed_at = False, inf, now
        return [do.HangUp(node)] if node else []

    @property
    def deadline(self) -> float | None:
        """When to call `advance` without any news."""
        return self._until if self.is_open and self._until < inf else None
