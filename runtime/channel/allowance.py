"""How long a worker may go on without a sign of life from its agent.

An agent that is stopped or cut off cannot tell its workers that the others have gone on without them. So it tells them
in advance until when they may work, and moves that time forward as long as it is sure (`softrun.agent.core.allowance`):

    ── works ──▶ hold ── completes no further step ──▶ leave ── gets out of its world

After `hold` a worker waits between two steps, which costs only time if the agent then moves the time forward. After
`leave` the others may be in the next world, so the worker leaves its own, as on PAUSE.

Both are times of the agent's clock (`softrun.runtime.clock`), in nanoseconds; 0 means no bound.
"""

from __future__ import annotations

from softrun.runtime.channel.page import HOLD, LEAVE, Page
from softrun.runtime.clock import boottime_ns


class Allowance:
    """The worker's end of the allowance."""

    def __init__(self, page: Page | None) -> None:
        self._words: memoryview | list[int] = page.words if page is not None else [0] * (LEAVE + 1)

    def holds(self) -> bool:
        """Whether to wait between two steps. It makes no system call: call it after every step."""
        hold_at = self._words[HOLD]
        return hold_at != 0 and hold_at <= boottime_ns()

    def is_over(self) -> bool:
        """Whether to leave the world."""
        leave_at = self._words[LEAVE]
        return leave_at != 0 and leave_at <= boottime_ns()


def allow(page: Page, hold_at_s: float, leave_at_s: float) -> None:
    """Set the allowance, as the agent: times of its clock in seconds, 0 for no bound."""
    for word, at_s in ((LEAVE, leave_at_s), (HOLD, hold_at_s)):
        page.words[word] = max(1, int(at_s * 1e9)) if at_s else 0
