"""Workers whose handler of SIGTERM only notes it: they are told that no world follows, and their own code ends them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node

pytestmark = [pytest.mark.processes, pytest.mark.slow]
Start = Callable[..., Node]
GRACE = "--shutdown_timeout=300"
"""For as long as no test waits: a worker that does not end by itself fails its test."""


@pytest.fixture
def begin(cluster: LocalCluster, start: Start, tmp_path: Path) -> Callable[..., Node]:
    def begin(name: str, way: str, nproc: int = 1) -> Node:
        node = start(name, "notes_signals.py", str(tmp_path), way, nproc=nproc, flags=(GRACE, "--max_restarts=1"))
        trains = len(pids(tmp_path)) + nproc
        cluster.wait_for("all train", lambda: len(pids(tmp_path)) == trains)
        return node

    return begin


def pids(directory: Path) -> list[int]:
    """Of the workers, by rank, as far as they have begun to train."""
    return [int(path.read_text() or 0) for path in sorted(directory.glob("pid-*"))]


@pytest.mark.parametrize("way", ["worlds", "wrapper"])
def test_a_worker_of_a_node_that_leaves_ends_by_itself(begin: Callable[..., Node], tmp_path: Path, way: str) -> None:
    stays, leaves = (begin(name, way) for name in "ab")
    os.kill(leaves.process.pid, signal.SIGTERM)
    leaves.wait()
    assert (tmp_path / f"over-{pids(tmp_path)[1]}").exists(), leaves.output()
    (tmp_path / "enough").touch()
    assert stays.wait() == 0, stays.output()


def test_a_loop_that_its_signal_ends_is_not_done(
    cluster: LocalCluster, begin: Callable[..., Node], tmp_path: Path
) -> None:
    """The neighbour of a killed worker ends well, but its work is not through: both begin again."""
    node = begin("a", "stops", nproc=2)
    neighbour, killed = before = pids(tmp_path)
    os.kill(killed, signal.SIGKILL)
    cluster.wait_for("others train", lambda: not set(before) & set(pids(tmp_path)) or node.process.poll() is not None)
    (tmp_path / "enough").touch()
    assert node.wait() == 0, node.output()
    assert (tmp_path / f"over-{neighbour}").exists()
