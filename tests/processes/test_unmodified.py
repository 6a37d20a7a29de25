"""Scripts that know nothing of softrun: they take their world from their environment, and end when they like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node

pytestmark = [pytest.mark.processes, pytest.mark.slow]
Start = Callable[..., Node]
RECOGNISED = "takes its world from its environment alone"


def test_a_node_that_comes_later_is_in_one_world_with_the_others(cluster: LocalCluster, start: Start) -> None:
    args = ("plain.py", "100000", "0.01", str(cluster.directory / "checkpoint"))
    nodes = [start("a", *args, nproc=1)]
    cluster.wait_for_steps(1)
    nodes.append(start("b", *args, nproc=1))
    began = cluster.wait_for_steps(2)[0].mono
    steps = cluster.wait_for_steps(2, after=cluster.steps()[-1].mono)
    assert {step.world_size for step in steps if step.mono > began} == {2}, "nobody trains in the old world"
    for node in nodes:
        assert node.output().count(RECOGNISED) == 1, node.output()


def test_a_hard_restart_begins_the_work_of_all_again(cluster: LocalCluster, start: Start, tmp_path: Path) -> None:
    """When rank 2 fails, rank 3 of its node has exited 0, and the other node has finished: no part may be missing."""
    args = ("parts.py", str(tmp_path), "2")
    nodes = [start(name, *args, policy="hard", nnodes="2", flags=("--max_restarts=1",)) for name in "ab"]
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].output() + nodes[1].output()
    parts = {path.name for path in tmp_path.glob("*-of-*")}
    assert parts == {f"0-{rank}-of-4" for rank in (0, 1, 3)} | {f"1-{rank}-of-4" for rank in range(4)}
