"""The log of the links. Anybody who reaches a port can make a link fail, so what it says is bounded and escaped."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

WARNINGS = 10  # the most in `WARNINGS_S` seconds
WARNINGS_S = 60.0
WARNINGS_OF_ONE = 3  # the most of them about what comes from one address
MOST_CHARACTERS = 200  # of a line
_NAME_CHARACTERS = 40

logger = logging.getLogger("softrun.links")


class QuietLog:
    """Warnings that nobody can fill a disk with: `WARNINGS` in `WARNINGS_S` seconds, of `MOST_CHARACTERS` each.

    Nor can one address use them up: an agent with a wrong token is named beside a stranger that makes much noise.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._warned: deque[tuple[float, str]] = deque(maxlen=WARNINGS)  # when, and about which address
        self._left_out = 0

    def warn(self, text: str, *what: object, source: str = "") -> None:
        """Log a line, as `logging` does. The next line that there is room for says how many were left out.

        `source`: the address from which it came, if it is about what came over a connection that was accepted.
        """
        now = self._clock()
        lately = [whence for at, whence in self._warned if now - at < WARNINGS_S]
        if len(lately) == WARNINGS or (source and lately.count(source) == WARNINGS_OF_ONE):
            self._left_out += 1
            return
        self._warned.append((now, source))
        line = escaped(text % what if what else text, MOST_CHARACTERS)
        if self._left_out:
            line += f" ({self._left_out} such lines were left out before this one)"
            self._left_out = 0
        logger.warning("%s", line)

    def fault(self, text: str, *what: object, source: str = "") -> None:
        """Log that something unexpected was raised, from the `except` that caught it. SOFTRUN_DEBUG shows where."""
        self.warn(text, *what, source=source)
        logger.debug("this was raised:", exc_info=True)


def escaped(text: str, most: int = _NAME_CHARACTERS) -> str:
    """Return the text in at most `most` characters, all of them printable ASCII."""
    shown = "".join(c if " " <= c <= "~" else c.encode("unicode_escape").decode() for c in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 3] + "..."
