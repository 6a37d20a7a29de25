"""A history as the search reads it: workers are bits, and calls and lives know beforehand how they end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from softrun.testing import history as read
from softrun.testing.history import Event, History, Incarnation, Worker

Mode = Literal["basic", "amended", "strict", "atomic"]
MODES: tuple[Mode, ...] = ("basic", "amended", "strict", "atomic")
NEVER = sys.maxsize


@dataclass(slots=True, eq=False)
class Life:
    """A worker from a start to the next."""

    inc: Incarnation | None
    mortal_from: int = NEVER
    """The number of the step after which its failure may be placed, up to the worker's next start."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a call is answered."""

    event: read.Reply
    members: int
    incs: Mapping[int, Incarnation]
    """By worker's bit; empty if the answer names none."""

    def contradicts(self, other: Answer) -> bool:
        """Whether the two cannot be of one decision."""
        rounds = self.event.round, other.event.round
        return self.members != other.members or (None not in rounds and rounds[0] != rounds[1])

    def says_more_than(self, other: Answer) -> bool:
        """Whether it has incarnations or a round that the other lacks, or has otherwise."""
        return self.incs not in ({}, other.incs) or self.event.round not in (None, other.event.round)


@dataclass(slots=True, eq=False)
class Call:
    """A call, and how it ends."""

    event: read.Call
    number: int
    """The number of the step in which it begins."""
    bit: int
    life: Life
    scope: int
    previous: Call | None
    """The call before it in the same life."""
    answer: Answer | None = None
    has_failed: bool = False
    """Whether it ends in an error."""
    told: bool | None = None
    """Which outcome the worker is told of the block that the call ends; None: it is told none."""
    ends_at: float = NEVER
    """When the call ends."""
    lives_on: bool = False
    """Whether its worker is answered another call in the same life: then what it was told here counts."""

    @property
    def answered(self) -> Answer:
        """Its answer, if it is known to have one."""
        if self.answer is None:
            raise AssertionError("an answer is expected of a call that has none")
        return self.answer

    @property
    def agrees(self) -> bool:
        """Whether the block that it ends went well here. A call that ended in an error has begun none."""
        return self.event.vote != "raise" and not (self.previous is not None and self.previous.has_failed)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An event, the life that it is part of, and the call that it begins or ends."""

    event: Event
    number: int
    bit: int
    life: Life | None
    call: Call | None


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The steps of a history, and the mode in which it is judged."""

    workers: tuple[Worker, ...]
    mode: Mode
    steps: tuple[Step, ...]

    @property
    def pins_failures(self) -> bool:
        """Whether failures happened where they are recorded."""
        return self.mode == "basic"

    @property
    def is_exclusive(self) -> bool:
        """Whether a decision takes its members' calls, and all of them are answered alike."""
        return self.mode in ("strict", "atomic")

    @property
    def is_atomic(self) -> bool:
        """Whether the outcomes of blocks are judged as well."""
        return self.mode == "atomic"

    def names(self, mask: int) -> list[Worker]:
        """Return the workers of a mask."""
        return [worker for place, worker in enumerate(self.workers) if mask >> place & 1]


def timeline_of(history: History, mode: Mode) -> Timeline:
    """Prepare a history for the search."""
    bits = {worker: 1 << place for place, worker in enumerate(history.procs)}
    courses = {worker: _Course(bits, bit, pins_failures=mode == "basic") for worker, bit in bits.items()}
    steps = [courses[event.p].add(event, number) for number, event in enumerate(history.in_order())]
    return Timeline(history.procs, mode, tuple(steps))


class _Course:
    """The course of one worker, as far as it was read."""

    def __init__(self, bits: Mapping[Worker, int], bit: int, pins_failures: bool) -> None:
        self._bits = bits
        self._bit = bit
        self._pins_failures = pins_failures
        self._life: Life | None = None
        self._call: Call | None = None  # the last one of its life
        self._has_ended = False
        self._last = 0  # the step of its last event
        self._evictable_from = 0  # the step that its eviction cannot be moved past

    def add(self, event: Event, number: int) -> Step:
        """Read its next event."""
        match event:
            case read.Start():
                self._begin(event, number)
            case read.Call():
                self._call = self._new_call(event, number)
            case read.Reply():
                self._ending_call().answer = Answer(event, self._mask(event.live), self._incarnations(event))
                earlier = self._ending_call().previous
                while earlier is not None and not earlier.lives_on:
                    earlier.lives_on, earlier = True, earlier.previous
                self._ending_call().told, self._ending_call().ends_at = event.ok, event.t
                self._evictable_from = self._ending_call().number
            case read.Error():
                self._ending_call().has_failed = True
                self._ending_call().told, self._ending_call().ends_at = event.ok, event.t
            case read.Fail():
                self._end(self._last)
            case read.Evicted():
                self._end(self._evictable_from)
        self._last = number
        call = self._call if isinstance(event, (read.Call, read.Reply, read.Error)) else None
        return Step(event, number, self._bit, self._life, call)

    def _ending_call(self) -> Call:
        if self._call is None:
            raise AssertionError("a call ends that has not begun")
        return self._call

    def _begin(self, event: read.Start, number: int) -> None:
        if self._life is not None and not self._has_ended:
            self._life.mortal_from = self._last
        self._life, self._call, self._has_ended = Life(event.inc), None, False
        self._evictable_from = number

    def _end(self, mortal_from: int) -> None:
        self._has_ended = True
        if self._life is not None and not self._pins_failures:
            self._life.mortal_from = mortal_from

    def _new_call(self, event: read.Call, number: int) -> Call:
        if self._life is None:
            raise AssertionError("a worker calls that has not started")
        scope = self._mask(self._bits if event.scope is None else event.scope)
        return Call(event, number, self._bit, self._life, scope, self._call)

    def _mask(self, workers: Iterable[Worker]) -> int:
        return sum(self._bits[worker] for worker in workers)

    def _incarnations(self, event: read.Reply) -> dict[int, Incarnation]:
        if event.incs is None:
            return {}
        return {self._bits[worker]: event.incs[str(worker)] for worker in event.live}
