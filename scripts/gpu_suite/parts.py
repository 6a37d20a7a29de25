"""The parts of a recovery, by the clock that the agent's log and the trainers' marks (trainers/gpu_marks.py) share."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from itertools import accumulate, pairwise
from pathlib import Path

from gpu_suite.setting import FailedError

PARTS = ("detect", "agree", "abort", "rebuild", "first_step")
"""Until the agent knows that the worker is dead; until the next world stands; until the last survivor has come out of
its collective, which may be before that; until it has its next group; until its first step there."""

_LINE = re.compile(r"^softrun\[\d+\] (\d\d:\d\d:\d\d\.\d\d\d) (.*)")


def parts_of(began: float, gap: float, world: int, survivors: set[int], log: Path, marks: Path) -> dict[str, float]:
    """Of the recovery from a kill at `began` in that world, which these processes survived, in seconds. After `gap` all
    of them had made a step again."""
    ends = [
        began,
        _first(at for at, text in _said(log, began) if "was ended by signal 9" in text),
        _first(at for at, text in _said(log, began) if text.startswith(f"round {world + 1}:")),
        _last(marks, survivors, "out", began),
        _last(marks, survivors, "built", began),
        began + gap,
    ]
    each = pairwise(accumulate(ends, max))
    return {part: end - begin for part, (begin, end) in zip(PARTS, each, strict=True)}


def _said(log: Path, since: float) -> Iterator[tuple[float, str]]:
    """The agent's lines since then. They have the time of day, in milliseconds."""
    midnight = datetime.fromtimestamp(since).replace(hour=0, minute=0, second=0, microsecond=0)
    for found in filter(None, map(_LINE.match, log.read_text(errors="replace").splitlines())):
        clock = datetime.strptime(found[1], "%H:%M:%S.%f")
        at = midnight.replace(hour=clock.hour, minute=clock.minute, second=clock.second, microsecond=clock.microsecond)
        if at.timestamp() >= since - 0.001:
            yield at.timestamp(), found[2]


def _last(marks: Path, survivors: set[int], what: str, since: float) -> float:
    """When the last of them set this mark, each for the first time since then."""
    firsts = []
    for pid in survivors:
        found = map(json.loads, (marks / f"marks-{pid}.jsonl").read_text().splitlines())
        firsts.append(_first(float(mark["at"]) for mark in found if mark["what"] == what and mark["at"] >= since))
    return max(firsts)


def _first(times: Iterator[float]) -> float:
    found = next(times, None)
    if found is None:
        raise FailedError("a part of the recovery is neither in the agent's log nor among the trainers' marks")
    return found
