"""Whatever dies, training with a State goes on as if nothing had."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, send

pytestmark = [pytest.mark.processes, pytest.mark.slow]

Start = Callable[..., Node]
SIZE, STEPS = 4, 200
RANKS = range(SIZE)
FLAGS = ("--worker_failure=replace", "--max_restarts=1000")


def told(directory: Path) -> dict[int, list[str]]:
    """What the ranks of the last world have told: their steps, how often the model was called, digests of weights and
    of the buffers that are the same everywhere, and the same of a BatchNorm."""
    return {int(path.name.split("-")[1]): path.read_text().split() for path in directory.glob("told-*")}


def losses(directory: Path) -> dict[tuple[int, int], str]:
    """By step and rank, the loss to its last bit; a step that was done again has the same."""
    found: dict[tuple[int, int], str] = {}
    for line in "".join(path.read_text() for path in directory.glob("losses-*")).splitlines():
        step, rank, loss = line.split()
        assert found.setdefault((int(step), int(rank)), loss) == loss, line
    return found


@pytest.fixture
def undisturbed(start: Start, tmp_path: Path) -> Callable[[int], Path]:
    """A run of so many steps without faults; returns its directory."""

    def run(steps: int) -> Path:
        directory = tmp_path / "whole"
        directory.mkdir()
        node = start("whole", "healed.py", str(directory), str(SIZE), str(steps), nnodes="1", nproc=SIZE, flags=FLAGS)
        assert node.wait() == 0, node.output()
        assert {rank: words[:2] for rank, words in told(directory).items()} == dict.fromkeys(RANKS, [str(steps)] * 2)
        assert len(losses(directory)) == steps * SIZE
        return directory

    return run


def check_losses(whole: Path, broken: Path) -> None:
    """Each loss is that of the run without faults, and no step is missing."""
    expected, found = losses(whole), losses(broken)
    assert found.items() <= expected.items()
    assert {step for step, _ in found} == {step for step, _ in expected}


def test_after_five_kills_losses_weights_and_buffers_are_those_of_a_run_without_any(
    cluster: LocalCluster, start: Start, tmp_path: Path, undisturbed: Callable[[int], Path]
) -> None:
    whole, broken = undisturbed(STEPS), tmp_path / "broken"
    broken.mkdir()
    first = len(cluster.steps())

    node = start("broken", "healed.py", str(broken), str(SIZE), str(STEPS), nnodes="1", nproc=SIZE, flags=FLAGS)
    draw = random.Random(5)
    for _ in range(5):
        before = len(cluster.steps())

        def goes_on(before: int = before) -> list[int]:
            """The workers of the newest world, once it has made some steps."""
            steps = cluster.steps()[first:]
            recent = steps[before - first :]
            pids = sorted({step.pid for step in recent if step.round == max(step.round for step in recent)})
            return pids if len(recent) > draw.randrange(4, 60) and len(pids) == SIZE else []

        send(draw.choice(cluster.wait_for("steps", goes_on)), signal.SIGKILL)
    assert node.wait() == 0, node.output()
    assert len({step.pid for step in cluster.steps()[first:]}) == SIZE + 5, "they were killed while they trained"
    (same,) = {tuple(words[:5]) for words in told(whole).values()}
    assert {rank: tuple(words[:5]) for rank, words in told(broken).items()} == dict.fromkeys(RANKS, same)
    check_losses(whole, broken)


def test_a_step_that_was_interrupted_has_moved_no_buffer(
    start: Start, tmp_path: Path, undisturbed: Callable[[int], Path]
) -> None:
    """Whoever was in its forward pass, in its backward pass, or through with both, goes on from the last commit. The
    first rank lives: DDP sends its BatchNorm's statistics to the others."""
    whole, broken = undisturbed(80), tmp_path / "broken"
    broken.mkdir()
    deaths = ("10:1:forward", "25:2:backward", "40:3:before", "41:1:backward", "60:3:forward")
    args = (str(broken), str(SIZE), "80", *deaths)
    node = start("broken", "healed.py", *args, nnodes="1", nproc=SIZE, flags=FLAGS)
    assert node.wait() == 0, node.output()
    assert {path.name for path in broken.glob(".*")} == {f".{death}" for death in deaths}
    assert told(broken) == told(whole)
    check_losses(whole, broken)


@pytest.mark.parametrize("who", ["source", "newcomer", "first"])
def test_somebody_dies_in_the_middle_of_a_healing(start: Start, tmp_path: Path, who: str) -> None:
    directory = tmp_path / "told"
    directory.mkdir()
    node = start("a", "healing_breaks.py", str(directory), who, nnodes="1", nproc=3, flags=FLAGS)
    assert node.wait() == 0, node.output()
    assert (directory / "broken").exists()
    told = [path.read_text() for path in directory.glob("told-*")]
    assert len(told) == 3
    assert len(set(told)) == 1, "all end with the same weights after the same step"
