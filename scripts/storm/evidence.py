"""What is known of a run when it is over: the lines of all diaries, and what the driver saw from outside."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storm.plan import Fault, Plan, Slot


@dataclass(frozen=True)
class Line:
    """One line of a worker's diary; what a kind of line does not say is 0."""

    mono: float
    pid: int
    slot: Slot
    what: str
    round: int = 0
    size: int = 0
    step: int = 0
    weight: float = 0.0
    number: int = -1
    """Of the fault."""


def read_line(text: str | bytes) -> Line:
    said: dict[str, Any] = json.loads(text)
    known = {name: value for name, value in said.items() if name in Line.__dataclass_fields__}
    return Line(**known, slot=Slot(said["node"], said["local_rank"]))


class Diaries:
    """The lines of all workers of a run, read as they come."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self.lines: list[Line] = []

    def read(self) -> list[Line]:
        new: list[Line] = []
        for path in self._directory.glob("*.jsonl"):
            at = self._read.get(path, 0)
            if path.stat().st_size > at:
                with path.open("rb") as diary:
                    diary.seek(at)
                    *lines, _unfinished = diary.read().split(b"\n")
                self._read[path] = at + sum(len(line) + 1 for line in lines)
                new += map(read_line, lines)
        self.lines += new
        return new


@dataclass
class Evidence:
    plan: Plan
    lines: list[Line]
    """In the order of time."""
    codes: dict[str, int] = field(default_factory=dict)
    """The exit codes of the launchers, by node."""
    rounds: int = 0
    """The newest world that an agent or a worker knew of."""
    overdue: str = ""
    """What was not over within its time."""
    orphans: int = 0
    left: tuple[str, ...] = ()
    """Files of softrun's."""
    log_bytes: dict[str, int] = field(default_factory=dict)
    took_s: float = 0.0

    @property
    def struck(self) -> list[Fault]:
        """Those that befell somebody, in order."""
        numbers = [line.number for line in self.lines if line.what == "fault"]
        return [self.plan.faults[number] for number in numbers]
