"""A second checker, for small histories, that shares no thought with the first.

Time is a grid. Each gap between two events has a place for every failure that may lie in it, and a moment before,
between and after them. Every placement of the failures is tried. For each, `basic` and `amended` look for a moment for
each answer by itself; `strict` and `atomic` try every way to give each answer a decision. It knows the JSON alone.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Placement = dict[int, float]  # where each life fails, by its place in the list of lives


@dataclass(eq=False)
class Call:
    worker: int
    life: int
    number: int
    begin: int
    scope: frozenset[int]
    vote: str | None
    end: float = math.inf
    reply: dict[str, Any] | None = None
    error: bool = False


@dataclass
class Life:
    worker: int
    inc: object
    start: int
    calls: list[Call] = field(default_factory=list)
    last: int = 0
    end: int | None = None
    kind: str = ""  # of its end: fail, evicted or start, which implies one
    next_start: float = math.inf


class Grid:
    """The history's events, at their places on the grid."""

    def __init__(self, history: dict[str, Any], basic: bool) -> None:
        events = sorted(history["events"], key=lambda event: event["t"])
        self.workers = frozenset(history["procs"])
        self.lives: list[Life] = []
        self.basic = basic
        self.step = 2 * (len(events) + 1)  # twice as many as failures can be
        self.size = (len(events) + 1) * self.step
        for number, event in enumerate(events, 1):
            self._add(event, number * self.step)
        self.gaps = [self._gaps(life) for life in self.lives]
        #: How many failures may lie in the gap that begins at each event.
        self.crowd = Counter(gap for gaps in self.gaps for gap in gaps)

    def _add(self, event: dict[str, Any], at: int) -> None:
        worker = event["p"]
        own = [life for life in self.lives if life.worker == worker]
        life = own[-1] if own else None
        match event["e"]:
            case "start":
                if life is not None:
                    life.next_start = at
                    life.kind = life.kind or "start"
                self.lives.append(Life(worker, event.get("inc"), at))
                life = self.lives[-1]
            case "fail" | "evicted" if life is not None:
                life.kind, life.end = event["e"], at
                return
            case "call":
                place = self.lives.index(life)
                scope = frozenset(event.get("scope") or self.workers)
                life.calls.append(Call(worker, place, len(life.calls), at, scope, event.get("vote")))
            case "reply":
                life.calls[-1].reply, life.calls[-1].end = event, at
            case "error":
                life.calls[-1].error, life.calls[-1].end = True, at
        if life is not None:
            life.last = at

    def _gaps(self, life: Life) -> range:
        """The gaps in which a life may be placed to fail, by the events that they begin with."""
        if not life.kind or (self.basic and life.end is not None):
            return range(0)
        earliest = life.start if life.kind == "evicted" else life.last
        return range(earliest, int(min(life.next_start, self.size)), self.step)

    def placements(self) -> Iterator[Placement]:
        """Every way to place the failures. They stand at the odd places of a gap, the moments at even ones."""
        choices = [list(self._places(number)) for number in range(len(self.lives))]
        return (dict(enumerate(chosen)) for chosen in itertools.product(*choices))

    def _places(self, number: int) -> Iterator[float]:
        life = self.lives[number]
        if not self.gaps[number]:
            yield life.end or math.inf
        for gap in self.gaps[number]:
            yield from range(gap + 3, gap + 2 * self.crowd[gap] + 2, 2)

    def moments(self, call: Call) -> Iterator[int]:
        """The moments within a call."""
        for gap in range(call.begin, int(min(call.end, self.size)), self.step):
            yield from range(gap + 2, gap + 2 * self.crowd[gap] + 3, 2)

    def lives_at(self, at: int, placed: Placement) -> dict[int, int]:
        """By worker, the life that it is in."""
        return {life.worker: n for n, life in enumerate(self.lives) if life.start < at < placed[n]}

    def calls_for(self, call: Call, at: int, placed: Placement) -> frozenset[Call] | None:
        """The calls of those that the call's answer names, if this moment allows the answer."""
        lives = self.lives_at(at, placed)
        members = set(call.reply["live"])
        if call.worker not in members or not members <= call.scope or lives.keys() & call.scope != members:
            return None
        found = {c for n in lives.values() for c in self.lives[n].calls if c.begin < at < c.end and c.worker in members}
        if {c.worker for c in found} != members or any(c.scope != call.scope for c in found):
            return None
        incs = call.reply.get("incs")
        if incs is not None and any(incs[str(c.worker)] != self.lives[c.life].inc for c in found):
            return None
        return frozenset(found)

    def answered(self) -> list[Call]:
        return [call for life in self.lives for call in life.calls if call.reply is not None]

    def previous(self, call: Call) -> Call | None:
        return self.lives[call.life].calls[call.number - 1] if call.number else None


def check(history: dict[str, Any], mode: str) -> bool:
    grid = Grid(history, mode == "basic")
    if mode in ("basic", "amended"):
        return any(
            all(any(grid.calls_for(call, at, placed) for at in grid.moments(call)) for call in grid.answered())
            for placed in grid.placements()
        )
    tried: set[tuple[frozenset[frozenset[Call]], ...]] = set()
    for placed in grid.placements():
        choices = tuple(
            frozenset(found for at in grid.moments(call) if (found := grid.calls_for(call, at, placed)))
            for call in grid.answered()
        )
        if choices not in tried and all(choices):
            tried.add(choices)
            for decisions in assign(grid.answered(), choices, {}):
                if mode == "strict" or outcomes_are_right(grid, decisions):
                    return True
    return False


def assign(
    calls: list[Call], choices: tuple[frozenset[frozenset[Call]], ...], taken: dict[Call, frozenset[Call]]
) -> Iterator[dict[Call, frozenset[Call]]]:
    """Every way to give each answered call a decision, which is the set of calls that it takes."""
    if not calls:
        yield taken
        return
    call, *rest = calls
    for decision in choices[0]:
        if call in taken:
            fits = taken[call] == decision
        else:
            fits = not any(other in taken for other in decision) and are_alike(decision)
        if fits:
            yield from assign(rest, choices[1:], taken | dict.fromkeys(decision, decision))


def are_alike(decision: frozenset[Call]) -> bool:
    replies = [call.reply for call in decision if call.reply is not None]
    rounds = {reply["round"] for reply in replies if reply.get("round") is not None}
    incs = {tuple(sorted(reply["incs"].items())) for reply in replies if reply.get("incs") is not None}
    return len({frozenset(reply["live"]) for reply in replies}) == 1 and len(rounds) < 2 and len(incs) < 2


def outcomes_are_right(grid: Grid, decisions: dict[Call, frozenset[Call]]) -> bool:
    for call in grid.answered():
        ok = call.reply.get("ok")
        if ok is not None:
            previous = grid.previous(call)
            if previous is None or ok != succeeded(grid, decisions.get(previous), decisions[call]):
                return False
    return True


def succeeded(grid: Grid, block: frozenset[Call] | None, ending: frozenset[Call]) -> bool:
    if block is None:
        return False
    ended = {grid.previous(call): call for call in ending}
    return all(call in ended and not call.error and ended[call].vote != "raise" for call in block)
