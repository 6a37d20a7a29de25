"""The watch over one worker's progress: when the worker last made progress, and when to look again.

The worker writes the time of its progress where the agent can read it (`softrun.runtime.channel.progress`). The agent
reads it only when a limit has passed since the last progress that it knows of, so a worker that makes progress costs
one look per limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from softrun.runtime.events import ProgressLimits

LEAVE = ProgressLimits(soft=10.0, hard=60.0)
"""For a worker that was told to leave its world, where nothing that it may wait for goes on."""
FREED_S = 2.0
"""How long a worker that was only waiting may need to stop waiting, once it is told to leave its world."""

SAME_S = 0.01
"""The time of one progress, read twice, may differ by that: it was written by another clock."""


@dataclass
class ProgressWatchdog:
    """The limits of one worker, and its last progress. Times are the engine's, in seconds."""

    limits: ProgressLimits
    since: float
    _passed: set[float] = field(default_factory=set)  # the limits that have passed since then
    _told_at: float | None = None  # since when it should leave its world
    _broken_at: float | None = None  # and since when nothing goes on there that it may wait for

    def apply(self, limits: ProgressLimits, now: float) -> None:
        """Watch the worker by these limits from now on."""
        if limits != self.limits:
            self.limits, self.since = limits, now
            self._passed.clear()

    def begin(self) -> None:
        """It was told of a world: what was done about it in the last one may have to be done again."""
        self._passed.clear()

    def leave(self, now: float, *, broken: bool = True) -> None:
        """It was told to leave its world. If that is not `broken` the worker may take its time over its step."""
        if self._told_at is None:
            self._told_at = now
        if broken and self._broken_at is None:
            self._broken_at = now

    def left(self) -> None:
        """It has left its world."""
        self._told_at = self._broken_at = None

    def deadline(self) -> float | None:
        """When to look next."""
        return min((at for at in self._due() if at not in self._passed), default=None)

    def progressed(self, at: float, now: float) -> bool:
        """Its last progress was at `at`. Return whether another limit has passed since."""
        if at > self.since + SAME_S:
            self.since = at
            self._passed.clear()
        passed = self._past(now)
        new = passed - self._passed
        self._passed |= new
        return bool(new)

    def stalls(self, now: float) -> bool:
        """Whether any limit has passed since its last progress."""
        return bool(self._past(now))

    def overdue(self, now: float) -> bool:
        """Whether its hard limit has passed."""
        hard = self._hard_at()
        return hard is not None and now >= hard

    def _past(self, now: float) -> set[float]:
        return {due for due in self._due() if now >= due}

    def _due(self) -> list[float]:
        # No worker is ended before it was told to leave its world, so the first limit acts as a soft one.
        first = min((limit for limit in (self.limits.soft, self.limits.hard) if limit is not None), default=None)
        due = (self._at(first, LEAVE.soft), self._hard_at())
        return [at for at in due if at is not None]

    def _hard_at(self) -> float | None:
        at = self._at(self.limits.hard, LEAVE.hard)
        return at if at is None or self._told_at is None else max(at, self._told_at + FREED_S)

    def _at(self, limit: float | None, leave: float | None) -> float | None:
        due = [] if limit is None else [self.since + limit]
        if self._broken_at is not None and leave is not None:
            due.append(max(self.since, self._broken_at) + leave)
        return min(due, default=None)
