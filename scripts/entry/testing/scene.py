"""What is certain between two events of a history, whatever was decided before, and which decisions that allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from softrun.testing.timeline import Answer, Call, Step, Timeline


class Obstacle(NamedTuple):
    """Why a decision is impossible: what is wrong with a worker."""

    bit: int
    what: str


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """A moment that gives some calls their answer."""

    members: int
    takes: int
    """The workers whose calls are decided by it."""
    silent: int
    """Those of them whose calls end without an answer."""
    others: int
    """The workers that must be dead, and need not have been."""
    calls: tuple[Call, ...]
    """The calls of its members, if blocks are judged."""
    block: frozenset[int]
    """Their numbers."""
    agreed: frozenset[int]
    """The numbers of the calls before them, if the blocks that these began went well."""


class Scene:
    """The workers between two events."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.alive = 0
        """Those with a life that has not certainly ended."""
        self.mortal = 0
        """Those that may have failed already."""
        self.answered = 0
        """Those in a call that will be answered."""
        self._calls: dict[int, Call] = {}  # the open ones, by bit

    def advance(self, step: Step) -> None:
        """Go past an event."""
        match step.event.e:
            case "start":
                self.alive |= step.bit
                self.mortal &= ~step.bit
                self._close(step.bit)
            case "call" if step.call is not None:
                self._calls[step.bit] = step.call
                if step.call.answer is not None:
                    self.answered |= step.bit
            case "reply" | "error":
                self._close(step.bit)
            case "fail" | "evicted" if self._timeline.pins_failures:
                self.alive &= ~step.bit
                self._close(step.bit)
        if step.life is not None and step.life.mortal_from == step.number:
            self.mortal |= step.bit

    def _close(self, bit: int) -> None:
        self._calls.pop(bit, None)
        self.answered &= ~bit

    def decisions(self, undecided: int, bit: int) -> list[Decision]:
        """Return the decisions that are possible now for the calls of `undecided`, if they concern the worker of `bit`
        directly, or through workers that others of them concern as well."""
        calls = [call for call in self._calls.values() if call.bit & undecided]
        reach, grown = 0, bit
        while reach != grown:
            reach = grown
            for call in calls:
                if call.scope & reach:
                    grown |= call.scope
        suited: dict[tuple[int, int, object], list[Call]] = {}
        for call in calls:
            if call.scope & reach and call.bit & call.answered.members:
                # A decision has one answer; a moment suits those calls that are answered in the same words.
                words = None if self._timeline.is_exclusive else tuple(call.answered.incs.items())
                suited.setdefault((call.scope, call.answered.members, words), []).append(call)
        return [
            self._decision(scope, members, calls)
            for (scope, members, _), calls in suited.items()
            if not any(self.obstacles(calls[0]))
        ]

    def _decision(self, scope: int, members: int, suited: list[Call]) -> Decision:
        timeline = self._timeline
        takes = members if timeline.is_exclusive else sum(call.bit for call in suited)
        calls = [self._calls[bit] for bit in bits_of(members)] if timeline.is_atomic else []
        return Decision(
            members=members,
            takes=takes,
            silent=takes & ~self.answered,
            others=scope & self.alive & ~members,
            calls=tuple(calls),
            block=frozenset(call.number for call in calls),
            agreed=frozenset(call.previous.number for call in calls if call.previous is not None and call.agrees),
        )

    def obstacles(self, call: Call) -> Iterator[Obstacle]:
        """Yield what is in the way of giving a call its answer now."""
        answer, found = call.answered, False
        for obstacle in self._own_obstacles(call, answer):
            found = True
            yield obstacle
        if self._timeline.is_exclusive and not found:
            for bit in bits_of(answer.members & self.answered):
                other = self._calls[bit]
                if other.answered.says_more_than(answer):
                    yield from self._own_obstacles(other, other.answered)

    def _own_obstacles(self, call: Call, answer: Answer) -> Iterator[Obstacle]:
        if not call.bit & answer.members:
            yield Obstacle(call.bit, "is not in its own answer")
            return
        for bit in bits_of(answer.members):
            theirs = self._calls.get(bit)
            if not bit & call.scope:
                yield Obstacle(bit, "is not in the scope")
            elif not bit & self.alive:
                yield Obstacle(bit, "is dead")
            elif theirs is None:
                yield Obstacle(bit, "has no open call")
            elif theirs.scope != call.scope:
                yield Obstacle(bit, "asks about other workers")
            elif answer.incs and answer.incs[bit] != theirs.life.inc:
                yield Obstacle(bit, f"is incarnation {theirs.life.inc!r}, not {answer.incs[bit]!r}")
            elif self._timeline.is_exclusive and theirs.answer and theirs.answer.contradicts(answer):
                yield Obstacle(bit, f"gets another answer at t={theirs.answer.event.t:.12g}")
        for bit in bits_of(call.scope & self.alive & ~answer.members & ~self.mortal):
            yield Obstacle(bit, "is alive and left out")


def bits_of(mask: int) -> Iterable[int]:
    """Yield the bits of a mask, the lowest first."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
