"""What becomes of the files of a channel costs no worker its process."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, Step

pytestmark = pytest.mark.processes

Start = Callable[..., Node]
BLOCK = b"\0" * 4096


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system that is full soon."""
    directory = tmp_path / "small"
    directory.mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a file system")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(directory: Path) -> None:
    with (directory / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(BLOCK)
    with pytest.raises(OSError, match="No space left"):
        (directory / "one more").write_bytes(BLOCK)


def remove_channels(root: Path) -> None:
    """As a cleaner of temporary files does, the directories too."""
    for channels in root.glob("softrun-*"):
        for _ in range(100):  # a worker may write there meanwhile
            shutil.rmtree(channels, ignore_errors=True)
        assert not channels.exists()


def newest(steps: list[Step]) -> set[int]:
    last = max(s.round for s in steps)
    return {s.pid for s in steps if s.round == last}


def grow_and_shrink(cluster: LocalCluster, start: Start, survivors: set[int]) -> None:
    """Changes in both directions, with all that workers have to tell."""
    c = start("c", "count.py", "100000", "0.01")
    assert survivors < newest(cluster.wait_for_steps(6, after=time.monotonic()))
    c.kill()
    assert newest(cluster.wait_for_steps(4, after=time.monotonic())) == survivors


@pytest.mark.slow
def test_a_full_disk_costs_no_worker_its_process(cluster: LocalCluster, start: Start, small: Path) -> None:
    """It did at the next change: who could not be told of it was killed."""
    a = start("a", "count.py", "100000", "0.01", env={"SOFTRUN_CHANNEL_ROOT": str(small)})
    start("b", "count.py", "100000", "0.01")
    survivors = newest(cluster.wait_for_steps(4))
    fill(small)
    grow_and_shrink(cluster, start, survivors)
    assert "told through shared memory only" in a.output()
    assert "is ended" not in a.output()


@pytest.mark.slow
def test_removed_channels_cost_no_worker_its_process(cluster: LocalCluster, start: Start, tmp_path: Path) -> None:
    root = tmp_path / "cleaned"
    root.mkdir()
    a = start("a", "count.py", "100000", "0.01", env={"SOFTRUN_CHANNEL_ROOT": str(root)})
    start("b", "count.py", "100000", "0.01")
    survivors = newest(cluster.wait_for_steps(4))
    remove_channels(root)
    grow_and_shrink(cluster, start, survivors)
    assert "is ended" not in a.output()


@pytest.mark.slow
def test_a_worker_is_replaced_where_its_channel_was_removed(
    cluster: LocalCluster, start: Start, tmp_path: Path
) -> None:
    root = tmp_path / "cleaned"
    root.mkdir()
    flags = ("--worker_failure=replace", "--max_restarts=1")
    env = {"SOFTRUN_CHANNEL_ROOT": str(root)}
    node = start("a", "count.py", "100000", "0.01", nnodes="1", nproc=2, flags=flags, env=env)
    healthy, victim = sorted(newest(cluster.wait_for_steps(2)))
    remove_channels(root)
    os.kill(victim, 9)
    grown = newest(cluster.wait_for_steps(2, after=time.monotonic()))
    assert healthy in grown
    assert victim not in grown
    assert node.process.poll() is None
