"""What a wrapped function knows of its call, and what it may ask of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from softrun.runtime.inprocess.attribution import InterruptionRecord
from softrun.runtime.inprocess.state import FrozenState, State
from softrun.runtime.worker import ping, writing

if TYPE_CHECKING:
    from softrun.runtime.inprocess.calls.call import Call


class CallWrapper:
    """A handle on the call, for a wrapped function that asks for it: `def train(config, call: CallWrapper)`."""

    def __init__(self, call: Call) -> None:
        self._call = call

    @property
    def iteration(self) -> int:
        """How often the job has called the function again: 0 at first. The same on all ranks, newcomers included."""
        return self._call.iteration

    @property
    def state(self) -> State:
        """This rank's view of the call; see `State`."""
        return self._call.known_state

    @property
    def frozen_state(self) -> FrozenState:
        """A copy of `state`, as callbacks get it."""
        return self._call.known_state.freeze()

    @property
    def interruptions(self) -> tuple[InterruptionRecord, ...]:
        """Who ended the last iteration, and how, as far as it is known; ranks are those of its world."""
        return self._call.interruptions

    def ping(self) -> None:
        """Show that training makes progress. After the first ping of an iteration, others must follow in time."""
        ping()

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Let no restart begin in a block, such as writing a checkpoint. It is not entered once a restart has begun.

        What the process writes in it counts as progress, for an hour at most, even if the block is one long call. In
        any other call that takes longer than `soft_timeout`, the rank is taken for hung.
        """
        with self._call.session.interrupt.atomic(), writing():
            yield

    @contextmanager
    def disable_hang_protection(self) -> Iterator[None]:
        """Let neither soft_timeout nor hard_timeout end this rank in a block that takes long, such as loading data.

        They apply again, from then on, when the outermost such block ends, in whatever way. A rank that hangs in the
        block hangs for ever.
        """
        with self._call.without_limits():
            yield
