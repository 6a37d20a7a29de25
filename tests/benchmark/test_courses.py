"""The order in which a course measures, and what it does with a job that does not come back; no process is started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from measuring import Record
from peers import UnavailableError

from bench_suite import courses
from bench_suite.courses import course
from bench_suite.job import DidNotHappenError, Job, Shape, in_steady_state
from bench_suite.systems import OF_NODES, System, available
from local_cluster import LocalCluster, Step

FIRST_STEPS = [
    Step(mono=1.0, pid=pid, rank=pid, world_size=size, round=size, step=1) for size in (2, 4) for pid in range(size)
]


class FakeLogs:
    def steps(self) -> list[Step]:
        return FIRST_STEPS


class FakeJob:
    """Notes what is asked of it; `fails` are the things that do not happen."""

    def __init__(self, done: list[str], fails: set[str], shape: Shape) -> None:
        self.here = FakeLogs()
        self.shape = shape
        self._done = done
        self._fails = fails

    def note(self, what: str) -> None:
        self._done.append(what)
        if what in self._fails:
            raise DidNotHappenError(f"{what} failed")

    def start(self, nodes: int) -> float:
        self.note(f"start {nodes} of {self.shape.workers}")
        return 0.0

    def restore(self, timeout_s: float) -> None:
        _ = timeout_s
        self.note("restore")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[str], list[Record]]]:
    """`run("leave", fails={"restore"})`: what was done with the jobs, and the records."""

    def fault(measure: str) -> Callable[[Any, float], Record]:
        def befall(job: Any, patience_s: float) -> Record:
            job.note(measure)
            return {"gap_s": patience_s}

        return befall

    def run(*measures: str, fails: frozenset[str] = frozenset()) -> tuple[list[str], list[Record]]:
        done: list[str] = []

        def make(_here: LocalCluster, shape: Shape, _work: object) -> Any:
            return FakeJob(done, set(fails), shape)

        monkeypatch.setattr(courses, "RUN", {measure: fault(measure) for measure in OF_NODES})
        monkeypatch.setattr(courses, "worker_killed", fault("worker_killed"))
        return done, list(course(System("fake", make, measures, (), 7.0), measures))

    return run


def test_one_job_takes_all_faults_and_is_restored_between_them(run: Callable[..., Any]) -> None:
    done, taken = run("leave", "node_killed", "scale_up")
    assert done == ["start 2 of 2", "scale_up", "node_killed", "restore", "leave"]
    assert [(r["measure"], r["system"], r["gap_s"]) for r in taken] == [
        ("scale_up", "fake", 7.0),
        ("node_killed", "fake", 7.0),
        ("leave", "fake", 7.0),
    ]


def test_after_a_fault_that_it_does_not_survive_there_is_a_new_job(run: Callable[..., Any]) -> None:
    done, taken = run("node_killed", "leave", fails=frozenset({"node_killed"}))
    assert done == ["start 3 of 2", "node_killed", "start 3 of 2", "leave"]
    assert [r.get("failed") for r in taken] == ["node_killed failed", None]


def test_a_job_that_is_not_restored_is_given_up(run: Callable[..., Any]) -> None:
    done, taken = run("node_killed", "leave", fails=frozenset({"restore"}))
    assert done == ["start 3 of 2", "node_killed", "restore", "start 3 of 2", "leave"]
    assert not any("failed" in r for r in taken)


def test_a_job_that_does_not_start_leaves_all_untried(run: Callable[..., Any]) -> None:
    done, taken = run("node_killed", "leave", fails=frozenset({"start 3 of 2"}))
    assert done == ["start 3 of 2"]
    assert [(r["measure"], r["untried"]) for r in taken] == [
        ("node_killed", "it did not start: start 3 of 2 failed"),
        ("leave", "it did not start: start 3 of 2 failed"),
    ]


def test_a_cold_start_is_of_two_and_of_four(run: Callable[..., Any]) -> None:
    done, taken = run("cold_start", "worker_killed")
    assert done == ["start 1 of 2", "start 1 of 4", "worker_killed"]
    (start, killed) = taken
    assert (start["first_step_of_2_s"], start["first_step_of_4_s"]) == (1.0, 1.0)
    assert killed["gap_s"] == 7.0


def test_who_steps_alone_is_not_in_a_steady_state() -> None:
    def steps(pids: int, size: int, each: int) -> list[Step]:
        return [
            Step(mono=number, pid=pid, rank=pid, world_size=size, round=3, step=number)
            for number in range(each)
            for pid in range(pids)
        ]

    assert in_steady_state(steps(2, 2, 20), -1.0, 2)
    assert not in_steady_state(steps(1, 2, 20), -1.0, 2)
    assert not in_steady_state(steps(2, 2, 19), -1.0, 2)
    assert not in_steady_state(steps(2, 2, 20), 0.0, 2), "the first was too early"
    assert not in_steady_state([], 0.0, 2)


def test_a_system_that_cannot_be_had_is_named_once_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise UnavailableError(f"{name}: no wheel for this Python")

    monkeypatch.setattr("peers.python_of", refuse)
    own = System("own", Job, (), (), 1.0)
    peers = [System(f"peer {settings}", Job, (), (), 1.0, peer="peer") for settings in ("tuned", "default")]
    said: list[str] = []
    assert available([own, *peers], said.append) == [own]
    assert said == ["without peer, which cannot be had here: peer: no wheel for this Python"]
