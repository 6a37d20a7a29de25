"""Where nobody is lost all ranks leave their world after the same step: none is lost, and none repeated."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, Step

pytestmark = pytest.mark.processes

ENDLESS = "1000000"


def gaps(steps: Sequence[Step], pids: set[int]) -> list[tuple[int, int]]:
    """Pairs of neighbouring steps of one process that do not follow each other."""
    own = ([s.step for s in steps if s.pid == pid] for pid in pids)
    return [(a, b) for mine in own for a, b in pairwise(mine) if b != a + 1]


def last_steps(steps: Sequence[Step], number: int) -> set[int]:
    """Of all processes of a world, the last that each completed there."""
    last = {s.pid: s.step for s in steps if s.round == number}
    return set(last.values())


def test_nodes_come_between_two_steps(cluster: LocalCluster, start: Callable[..., Node]) -> None:
    for name in "ab":
        start(name, "reduce.py", ENDLESS, "0.01")
    steps = cluster.wait_for_steps(4)
    first, before = steps[-1].round, {s.pid for s in steps}
    for count, name in enumerate("cd", start=1):
        start(name, "reduce.py", ENDLESS, "0.01")
        steps = cluster.wait_for_steps(4 + 2 * count, each=20)
        assert gaps(cluster.steps(), before) == []
        assert len(last_steps(cluster.steps(), first + count - 1)) == 1
        before = {s.pid for s in steps}


@pytest.mark.slow
def test_a_wrapped_function_is_left_between_two_steps(
    cluster: LocalCluster, start: Callable[..., Node], tmp_path: Path
) -> None:
    start("a", "wrapped.py", ENDLESS, str(tmp_path))
    before = {s.pid for s in cluster.wait_for_steps(2)}
    start("b", "wrapped.py", ENDLESS, str(tmp_path))
    cluster.wait_for_steps(4, each=20)
    assert gaps(cluster.steps(), before) == []
    assert [(tmp_path / f"{pid}.iterations").read_text().split("\n")[1:] for pid in before] == [["1 NoneType", ""]] * 2


@pytest.mark.slow
def test_a_node_leaves_between_two_steps(cluster: LocalCluster, start: Callable[..., Node]) -> None:
    nodes = [start(name, "reduce.py", ENDLESS, "0.01") for name in "abc"]
    steps = cluster.wait_for_steps(6, each=10)
    number, leaver = steps[-1].round, nodes[1]
    leaving = set(leaver.family())
    at = leaver.signal(signal.SIGTERM)
    steps = cluster.wait_for_steps(4, after=at, each=20)
    staying = {s.pid for s in steps if s.world_size == 4}
    assert leaver.wait() == 1
    assert gaps(cluster.steps(), staying) == []
    assert len(last_steps(cluster.steps(), number)) == 1, "who left has taken part in the last step"
    assert not staying & leaving


def test_a_replaced_worker_comes_between_two_steps(cluster: LocalCluster, start: Callable[..., Node]) -> None:
    start("a", "reduce.py", ENDLESS, "0.01", nproc=3, flags=("--worker_failure=replace", "--max_restarts=3"))
    steps = cluster.wait_for_steps(3, each=10)
    victim = next(s.pid for s in reversed(steps) if s.rank == 2)
    at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    steps = cluster.wait_for_steps(3, after=at, each=20)
    number = steps[-1].round
    survivors = {s.pid for s in cluster.steps() if s.round == number - 1}
    assert len(survivors) == 2
    assert gaps([s for s in cluster.steps() if s.round >= number - 1], survivors) == []
