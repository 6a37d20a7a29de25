"""Leaving for good, to go on later: what a worker is told of it, and what the trainer wants to do then."""

from __future__ import annotations

import time
from collections.abc import Callable

from softrun.runtime.events import WorkerEvent


class Leave:
    """All ranks leave their job for good after the same step, or this node does: save what is needed to go on later."""

    def __init__(self, event: WorkerEvent) -> None:
        if event.preemption is None:
            raise ValueError("this event tells nobody to leave")
        self.reason = event.preemption.reason
        """Who told them, or what did: a signal, the time limit, nodes that are missing."""
        self.step = event.preemption.after
        """The step after which they leave; 0 if they count no steps, or could not finish one."""
        self.alone = event.preemption.alone
        """Only this node leaves, and the others go on without it: call no collectives."""
        self._until = event.timestamp / 1000 + event.preemption.seconds

    @property
    def seconds_left(self) -> float:
        """How many seconds are left to save and to end; then this process is killed."""
        return max(self._until - time.time(), 0.0)

    def __repr__(self) -> str:
        alone = ", alone" if self.alone else ""
        step = f", after step {self.step}" if self.step else ""
        return f"Leave({self.reason!r}{step}{alone}, {self.seconds_left:.1f} s left)"


LeaveCallback = Callable[[Leave], object]


class LeaveCallbacks:
    """The trainer's callbacks, in the order in which they were given."""

    def __init__(self) -> None:
        self._with_all: list[LeaveCallback] = []
        self._alone: list[LeaveCallback] = []

    def add(self, callback: LeaveCallback, alone: bool) -> Callable[[], None]:
        """Call it from now on; returns what ends that."""
        callbacks = [self._with_all, self._alone] if alone else [self._with_all]
        for each in callbacks:
            each.append(callback)

        def remove() -> None:
            for each in callbacks:
                if callback in each:
                    each.remove(callback)

        return remove

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._with_all)

    def call(self, leave: Leave) -> None:
        """Call those that are meant; an exception of one is the trainer's."""
        for callback in tuple(self._alone if leave.alone else self._with_all):
            callback(leave)
