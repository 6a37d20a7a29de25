"""What a job has trained after any number of faults: the same as without them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node

pytestmark = [pytest.mark.processes, pytest.mark.slow]

Start = Callable[..., Node]
FAULTS = 16


def trained_without_faults(steps: int) -> list[int]:
    """What exact.py trains, by one rank and in one run."""
    model = [0] * 8
    for step in range(steps):
        totals = [sum((weight * (item + 1) + step) % 1009 for item in range(12)) for weight in model]
        model = [(weight * 7 + total) % 1000003 for weight, total in zip(model, totals, strict=True)]
    return model


def test_after_random_faults_the_model_is_the_same_to_the_last_bit(
    cluster: LocalCluster, start: Start, tmp_path: Path
) -> None:
    directory = tmp_path / "faults"
    directory.mkdir()
    draw = random.Random(50)
    forked = ("--run_path", "--start_method=fork", "--worker_failure=replace", "--max_restarts=1000")
    node = start("a", "exact.py", str(directory), nproc=4, flags=forked)

    def all_go_on_after(round_: int) -> int | None:
        steps = cluster.steps()
        newest = max((step.round for step in steps), default=0)
        ranks = {(step.rank, step.world_size) for step in steps if step.round == newest}
        return newest if newest > round_ and ranks == {(rank, 4) for rank in range(4)} else None

    round_ = cluster.wait_for("the first step", lambda: all_go_on_after(0))
    kinds = ["exception", "exception", "kill", "kill", "exit", "sleep", "hold the GIL", "stop"]
    for _ in range(FAULTS):
        what = draw.choice(kinds)
        for victim in draw.sample(range(4), draw.choice((1, 1, 1, 2))):
            (directory / f".{victim}").write_text(what)
            (directory / f".{victim}").rename(directory / str(victim))
        round_ = cluster.wait_for(f"all after {what}", partial(all_go_on_after, round_))
    (directory / "stop").touch()
    assert node.wait() == 0, node.output()
    steps, *model = map(int, (directory / "result").read_text().split())
    assert steps > FAULTS, node.output()
    assert model == trained_without_faults(steps)
