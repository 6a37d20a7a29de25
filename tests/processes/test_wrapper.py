"""The wrapper on real processes: whatever befalls one rank, the others go on, and it comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, recovery

pytestmark = pytest.mark.processes

Start = Callable[..., Node]


@pytest.mark.parametrize(
    ("fault", "keeps_its_process"), [("exception", True), ("sleep", True), ("kill", False), ("stop", False)]
)
def test_the_function_is_restarted_on_every_healthy_rank(
    cluster: LocalCluster, start: Start, tmp_path: Path, fault: str, keeps_its_process: bool
) -> None:
    faults = tmp_path / "faults"
    faults.mkdir()
    replace = ("--worker_failure", "replace", "--max_restarts", "1")
    node = start("a", "wrapped.py", "1000000", str(faults), nproc=4, flags=replace)
    cluster.wait_for_steps(4)
    before = {step.pid: step.rank for step in cluster.steps()}
    victim = next(pid for pid, rank in before.items() if rank == 2)
    at = time.monotonic()
    (faults / "2").write_text(fault)
    healthy = set(before) if keeps_its_process else set(before) - {victim}
    cluster.wait_for("the others' next step", lambda: recovery(cluster.steps(), at, healthy), 30)
    cluster.wait_for_steps(4, after=time.monotonic())
    now = {step.pid for step in cluster.steps() if step.round == max(s.round for s in cluster.steps())}
    assert now >= healthy
    assert (victim in now) == keeps_its_process
    assert len(now) == 4, "the lost one was replaced"
    assert node.process.poll() is None
