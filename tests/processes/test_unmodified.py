"""Scripts that know nothing of softrun, under soft: they take their world from their environment."""

from __future__ import annotations

from collections.abc import Callable

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
