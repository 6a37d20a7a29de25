"""Whether a fault is the trainer's own: it comes again although nobody was lost.

torch's error for a lost peer does not tell whether a peer is lost: it may as well be a wrong interface, a collective
that one rank enters too late, or a firewall. Who is lost is known from the agents, as soon as the next world begins.
If that has the same members, they try once more, which is right for whatever passes; the same fault in the same place
is raised.
"""

from __future__ import annotations

import logging
import re
from typing import NamedTuple

from softrun.runtime.events import WorkerEvent

MOST_IN_VAIN = 5
"""How many worlds in a row the same members may form without coming further, whatever their faults are."""

_log = logging.getLogger("softrun.runtime")


class Place(NamedTuple):
    """How far the training was in a world."""

    step: int | None
    """The last step that it has counted there; None: it counts none, or came to none."""
    checks: int
    """How often it has checked there whether the world is over."""


class Recurrence:
    """The faults by which one worker has left its worlds, as long as nobody is lost and the training comes no further.

    Call `leaves` when it leaves a world, and `enters` with the event that names the next.
    """

    def __init__(self) -> None:
        self._furthest = -1
        self._in_vain = 0
        self._last: tuple[str, Place] | None = None
        self._fault: Exception | None = None
        self._place = Place(None, 0)
        self._left = 0  # the world that it has left; 0: it was in none

    def leaves(self, round_: int, fault: Exception | None, place: Place) -> None:
        """It leaves this world by an error that may be that of a lost peer; None: it was told to leave."""
        self._left, self._fault, self._place = round_, fault, place

    def enters(self, event: WorkerEvent) -> None:
        """The agents have formed the next world. Raises the fault if it is the trainer's own."""
        fault, self._fault = self._fault, None
        follows = event.round == self._left + 1  # or somebody may have been lost in a world that this worker missed
        if not follows or event.change_event is not None or event.lost:
            self._in_vain, self._last = 0, None
            return
        self._in_vain = 0 if self._came_further() else self._in_vain + 1
        if fault is None:
            return
        kind = (_without_numbers(summary(fault)), self._place)
        if kind == self._last or self._in_vain >= MOST_IN_VAIN:
            raise fault
        self._last = kind
        _log.warning(
            "worker %d left its last world by %s, though nobody was lost: it tries once more, and the same there is "
            "taken for the trainer's own fault and raised",
            event.worker_info.rank,
            summary(fault),
        )

    def _came_further(self) -> bool:
        step, checks = self._place
        if step is None:
            return checks > 0
        further = step > self._furthest
        self._furthest = max(step, self._furthest)
        return further


def summary(error: Exception) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def _without_numbers(text: str) -> str:
    """Ports, addresses and times differ from one occurrence to the next."""
    return re.sub(r"\d+", "", text)
