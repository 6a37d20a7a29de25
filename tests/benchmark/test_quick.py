"""What is measured first where there is little time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import bench
import pytest
from measuring import Record

from bench_suite.systems import System

COURSE_S = 100.0


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order of what a quick run takes where each system's course takes COURSE_S."""
    now = 0.0
    taken: list[str] = []

    def course(system: System, measures: Sequence[str]) -> Iterator[Record]:
        nonlocal now
        now += COURSE_S
        taken.append(system.name)
        yield {"system": system.name, "measure": measures[0], "gap_s": 1.0}

    def other(name: str) -> Any:
        return lambda _args: taken.append(name) or iter(())

    monkeypatch.setattr(bench, "course", course)
    monkeypatch.setattr(bench, "available", lambda systems, _say: list(systems))
    monkeypatch.setattr(bench, "OTHERS", {name: other(name) for name in bench.OTHERS})
    monkeypatch.setattr(time, "monotonic", lambda: now)
    list(bench.measured(bench.arguments().parse_args(["--quick"])))
    return taken


def test_where_time_is_short_softrun_is_not_measured_alone(taken: list[str]) -> None:
    """On a busy machine it was: what softrun costs by itself came first, then its course, and then time was up."""
    assert taken == ["torchrun fastest", "softrun", "torchft tuned"]
