"""The log of the links. Anybody who reaches a port can make a link fail, so what it says is bounded and escaped."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

WARNINGS = 10  # the most in `WARNINGS_S` seconds
WARNINGS_S = 60.0
MOST_CHARACTERS = 200  # of a line
_NAME_CHARACTERS = 40

logger = logging.getLogger("softrun.links")


class QuietLog:
    """Warnings that nobody can fill a disk with: `WARNINGS` in `WARNINGS_S` seconds, of `MOST_CHARACTERS` each."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._warned_at: deque[float] = deque(maxlen=WARNINGS)
        self._left_out = 0

    def warn(self, text: str, *what: object) -> None:
        """Log a line, as `logging` does. The next line that there is room for says how many were left out."""
        now = self._clock()
        if len(self._warned_at) == WARNINGS and now - self._warned_at[0] < WARNINGS_S:
            self._left_out += 1
            return
        self._warned_at.append(now)
        line = escaped(text % what if what else text, MOST_CHARACTERS)
        if self._left_out:
            line += f" ({self._left_out} such lines were left out before this one)"
            self._left_out = 0
        logger.warning("%s", line)

    def fault(self, text: str, *what: object) -> None:
        """Log that something unexpected was raised, from the `except` that caught it. SOFTRUN_DEBUG shows where."""
        self.warn(text, *what)
        logger.debug("this was raised:", exc_info=True)


def escaped(text: str, most: int = _NAME_CHARACTERS) -> str:
    """Return the text in at most `most` characters, all of them printable ASCII."""
    shown = "".join(c if " " <= c <= "~" else c.encode("unicode_escape").decode() for c in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 3] + "..."
