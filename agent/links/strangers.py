"""Strangers: accepted connections that have not introduced themselves, and proved themselves if there is a secret.

Anybody can open a connection and say nothing, so there are at most `MOST_STRANGERS`, each for at most `GREETING_S`.
When they are that many and another one comes, the oldest that has said nothing goes, of the source that has the most:
whoever sends its greeting at once, as agents do, gets in however many others sit there. Those that are in the middle of
a handshake may finish it: they can be turned out after `PATIENCE_S`, and until then the listeners wait, while honest
peers keep their place in the backlog of the kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from softrun.agent.links.connection import Connection
from softrun.agent.links.quiet_log import WARNINGS_S, QuietLog

MOST_STRANGERS = 64
GREETING_S = 5.0
PATIENCE_S = 0.1


@dataclass(slots=True)
class _Stranger:
    source: str
    since: float
    greeted: bool = False


class Strangers:
    """The strangers of one agent. `listen_again` is called whenever there is one fewer."""

    def __init__(self, log: QuietLog, listen_again: Callable[[], None]) -> None:
        self._log = log
        self._listen_again = listen_again
        self._strangers: dict[Connection, _Stranger] = {}  # the oldest first
        self._told_at = -WARNINGS_S

    def __len__(self) -> int:
        return len(self._strangers)

    def add(self, connection: Connection, source: str, now: float) -> None:
        """Keep an eye on a connection that was accepted just now."""
        self._strangers[connection] = _Stranger(source, now)

    def greeted(self, connection: Connection) -> None:
        """Note that it has sent a greeting, and is in the middle of the handshake."""
        if connection in self._strangers:
            self._strangers[connection].greeted = True

    def forget(self, connection: Connection) -> None:
        """Note that it is closed, or no stranger any more."""
        if self._strangers.pop(connection, None) is not None:
            self._listen_again()

    def room_at(self, now: float) -> float:
        """Return until when to wait before the next is accepted: `now` if there is room, or could be made."""
        while len(self._strangers) >= MOST_STRANGERS:
            connection = self._next_to_go()
            stranger = self._strangers[connection]
            if stranger.greeted and now < stranger.since + PATIENCE_S:
                return stranger.since + PATIENCE_S
            was_greeted = stranger.greeted
            if not was_greeted:
                connection.look()  # its greeting may just have come
            if connection in self._strangers and stranger.greeted == was_greeted:
                self._turn_out(connection, now)
        return now

    def deadline(self) -> float | None:
        """When `sweep` has something to do."""
        oldest = next(iter(self._strangers.values()), None)
        return None if oldest is None else oldest.since + GREETING_S

    def sweep(self, now: float) -> None:
        """Turn those out that have been strangers for too long."""
        while (until := self.deadline()) is not None and until <= now:
            connection = next(iter(self._strangers))
            late = "link to %s closed: it has not introduced itself in %g s"
            self._log.warn(late, connection.peer, GREETING_S, source=connection.source)
            connection.close()
            self.forget(connection)

    def _next_to_go(self) -> Connection:
        counts = Counter(stranger.source for stranger in self._strangers.values())
        most = max(counts.values())
        candidates = [c for c, stranger in self._strangers.items() if counts[stranger.source] == most]
        return next((c for c in candidates if not self._strangers[c].greeted), candidates[0])

    def _turn_out(self, connection: Connection, now: float) -> None:
        if now >= self._told_at + WARNINGS_S:
            self._told_at = now
            self._log.warn(
                "%d connections that have not introduced themselves: for each that comes the oldest is closed",
                MOST_STRANGERS,
            )
        connection.close()
        self.forget(connection)
