"""What the nested calls of wrapped functions in a process have in common, from the outermost's begin to its end."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from typing import TYPE_CHECKING, ClassVar

from softrun.runtime.events import WorkerEvent, WorkerState
from softrun.runtime.interrupt import Interrupt
from softrun.runtime.worker import last_event, wait_for_world, withhold_progress

if TYPE_CHECKING:
    from softrun.runtime.inprocess.call import Call


PATIENCE_S = 10.0
"""For the clean-up of an interrupted function whose wrapper has no soft_timeout."""


class Session:
    """`current` is this process's, while it calls a wrapped function; `event` is what it was told last."""

    current: ClassVar[Session | None] = None
    _numbered: ClassVar[int] = -1  # the newest world that calls of this process were in
    _numbers: ClassVar[Counter[int]] = Counter()  # by depth, of the calls that began in that world

    def __init__(self, event: WorkerEvent) -> None:
        self.interrupt = Interrupt(PATIENCE_S, withhold_progress)
        self.calls: list[Call] = []
        self.event = event  # of the newest world that a call was told of
        self.entered = -1  # the newest world that a call has worked in

    def next_event(self) -> WorkerEvent:
        """Of a world in which nobody has worked yet."""
        if self.event.round <= self.entered:
            self.event = wait_for_world(self.entered)
        return self.event

    def begin(self, call: Call) -> int:
        """The depth of this call, which is now the innermost."""
        self.calls.append(call)
        depth = len(self.calls)
        self._numbers[depth] += 1
        return depth

    def enter(self, world: WorkerEvent, depth: int) -> str:
        """The name by which the ranks meet for the call of this depth."""
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
        """Of the innermost call that all ranks are in: the reserves of one are not in those inside it."""
        return next((call.depth for call in self.calls if call.has_reserves), len(self.calls))

    def observe(self, event: WorkerEvent) -> None:
        """In the watcher's thread, which must not wait for an atomic block."""
        if event.sequence > self.event.sequence:
            request = functools.partial(self.interrupt.request, event.sequence, self.abort)
            threading.Thread(target=request, name="softrun-restart", daemon=True).start()

    def abort(self) -> None:
        """Get the innermost call out of what it waits in."""
        for call in self.calls[-1:]:
            call.abort()
