"""Trainings with Lightning and Accelerate keep their processes through changes of the world, and lose no sample."""

from __future__ import annotations

import re
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import Nursery

from local_cluster import LocalCluster, Node, send
from softrun import RESUME

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {
    "lightning": ROOT / "examples" / "train_lightning_soft.py",
    "accelerate": Path(__file__).parent / "scripts" / "train_accelerate_soft.py",
}
PACKAGES = {"lightning": "pytorch_lightning", "accelerate": "accelerate"}
SAMPLES, STEPS = 320, 10  # of an epoch


@pytest.fixture
def cluster(tmp_path: Path, nursery: Nursery) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, begin=nursery.begin) as cluster:
        yield cluster


def begin(cluster: LocalCluster, name: str, library: str, epochs: int) -> Node:
    flags = (
        "--standalone",
        "--nproc_per_node=2",
        "--restart_policy=soft",
        "--worker_failure=replace",
        "--max_restarts=3",
        f"--preload={PACKAGES[library]}",  # so that who comes comes before the end
    )
    given = (f"--directory={cluster.directory / 'ledger'}", f"--epochs={epochs}", "--pause=0.05")
    return cluster.start(name, [sys.executable, "-m", "softrun", *flags, str(SCRIPTS[library]), *given])


def lines(cluster: LocalCluster) -> dict[int, list[tuple[int, int, int, list[int]]]]:
    """By process: of each step its world, its number, its epoch, and its samples."""
    found = {}
    for path in (cluster.directory / "ledger").glob("samples-*"):
        said = re.findall(r"world (\d+) step (\d+) epoch (\d+) takes \[(.*)\]\n", path.read_text())
        found[int(path.name.split("-")[1])] = [
            (int(world), int(step), int(epoch), [int(number) for number in samples.split(",")])
            for world, step, epoch, samples in said
        ]
    return found


def check(cluster: LocalCluster, epochs: int, runs: int = 1) -> None:
    """Each sample of an epoch was in one step, as it was taken last; `runs`: how often the job was started."""
    said = [line for process in lines(cluster).values() for line in process]
    last: dict[int, int] = defaultdict(int)
    for world, step, _, _ in said:
        last[step] = max(last[step], world)
    assert sorted(last) == list(range(epochs * STEPS))
    taken: dict[int, list[int]] = defaultdict(list)
    for world, step, epoch, samples in said:
        if runs > 1 or world == last[step]:
            taken[epoch] += samples
    for epoch in range(epochs):
        assert sorted(taken[epoch]) == list(range(SAMPLES)), f"epoch {epoch}"


@pytest.mark.parametrize("library", SCRIPTS)
def test_a_worker_is_lost_and_another_comes(cluster: LocalCluster, library: str) -> None:
    node = begin(cluster, "a", library, epochs=15)
    wanted = 8

    def trained() -> list[int]:
        said = lines(cluster)
        return sorted(said) if len(said) == 2 and min(map(len, said.values())) > wanted else []

    victim, survivor = cluster.wait_for("steps", trained)
    send(victim, signal.SIGKILL)
    assert node.wait() == 0, node.output()
    check(cluster, 15)
    said = lines(cluster)
    assert len(said) == 3, "one process has gone, and one has come"
    assert {step for _, step, _, _ in said[survivor]} == set(range(150)), "it has taken part in every step"


@pytest.mark.parametrize("library", SCRIPTS)
def test_the_job_is_told_to_end_and_goes_on(cluster: LocalCluster, library: str) -> None:
    node = begin(cluster, "a", library, epochs=6)
    cluster.wait_for("steps", lambda: any(len(said) > 13 for said in lines(cluster).values()))
    node.signal(signal.SIGTERM)
    assert node.wait() == RESUME, node.output()
    node = begin(cluster, "b", library, epochs=6)
    assert node.wait() == 0, node.output()
    check(cluster, 6, runs=2)
