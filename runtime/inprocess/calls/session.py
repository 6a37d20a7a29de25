"""What nested calls of wrapped functions in a process share, while the outermost call lasts."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from typing import TYPE_CHECKING, ClassVar

from softrun.runtime.events import WorkerEvent, WorkerState
from softrun.runtime.inprocess.attribution import describe
from softrun.runtime.interrupt import Interrupt
from softrun.runtime.worker import last_event, wait_for_world, withhold_progress

if TYPE_CHECKING:
    from softrun.runtime.inprocess.calls.call import Call


PATIENCE_S = 10.0
"""The time for the clean-up of an interrupted function whose wrapper has no soft_timeout, in seconds."""


class Session:
    """`current` is this process's session, while it calls a wrapped function; `event` is the last that it was told."""

    current: ClassVar[Session | None] = None
    _numbered: ClassVar[int] = -1  # the newest world that calls of this process were in
    _numbers: ClassVar[Counter[int]] = Counter()  # how many calls began in that world, by depth

    def __init__(self, event: WorkerEvent) -> None:
        self.interrupt = Interrupt(PATIENCE_S, withhold_progress)
        self.calls: list[Call] = []
        self.event = event  # the event of the newest world that a call was told of
        self._restarts: list[threading.Thread] = []
        self.entered = -1  # the newest world that a call has worked in

    def next_event(self) -> WorkerEvent:
        """Wait for the event of a world in which no call has worked yet."""
        if self.event.round <= self.entered:
            self.event = wait_for_world(self.entered)
        return self.event

    def begin(self, call: Call) -> int:
        """Make this call the innermost; returns its depth, counted from 1."""
        self.calls.append(call)
        depth = len(self.calls)
        self._numbers[depth] += 1
        return depth

    def enter(self, world: WorkerEvent, depth: int) -> str:
        """The call of this depth enters a world; returns the name under which the ranks meet for it."""
        self.entered = world.round
        if self.entered > self._numbered:
            # Newcomers count from here as well.
            Session._numbered, Session._numbers = self.entered, Counter(range(1, depth + 1))
        return f"{depth}/{self._numbers[depth]}"

    @property
    def changed(self) -> bool:
        """Whether the world that the calls work in is over."""
        last = last_event()
        return last.round != self.event.round or last.worker_state is not WorkerState.HEALTHY

    @property
    def shared_depth(self) -> int:
        """The depth of the innermost call that all ranks are in: a call's reserves are not in the calls inside it."""
        return next((call.depth for call in self.calls if call.has_reserves), len(self.calls))

    def observe(self, event: WorkerEvent) -> None:
        """Take in an event, in the watcher's thread, which must not wait for an atomic block."""
        if event.sequence > self.event.sequence:
            ended = f"world {self.event.round} has ended"
            reason = f"{ended}: {because}" if (because := describe(event)) else ended
            request = functools.partial(self.interrupt.request, event.sequence, self.abort, reason)
            thread = threading.Thread(target=request, name="softrun-restart", daemon=True)
            self._restarts = [earlier for earlier in self._restarts if earlier.is_alive()] + [thread]
            thread.start()

    def join(self) -> None:
        """Wait for the threads of requests, which end with the run that they interrupt."""
        for thread in self._restarts:
            thread.join(PATIENCE_S)

    def abort(self) -> None:
        """Get the innermost call out of whatever it waits for."""
        for call in self.calls[-1:]:
            call.abort()
