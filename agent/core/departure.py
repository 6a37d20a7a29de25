"""A node that was told to leave works on until the others can do without it."""

from __future__ import annotations

from dataclasses import dataclass

from softrun.agent.protocol.effects import Result


@dataclass
class Departure:
    """From the signal that tells a node to leave until it does."""

    result: Result
    until: float
    """It leaves then, whatever the others need; by the engine's clock, in seconds."""
    seen_off: bool = False
    """The others have a world without it: its workers end the step that was agreed on."""

    def is_due(self, *, works: bool, has_left: bool, expelled: bool, now: float) -> bool:
        """Whether it leaves now. `has_left`: its workers have ended that step; `expelled`: nobody waits for it."""
        needed = works and not (self.seen_off and has_left)
        return not needed or (expelled and not self.seen_off) or now >= self.until
