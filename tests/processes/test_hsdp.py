"""Hybrid sharding through losses and returns: examples/train_hsdp.py, beside a run that lost nobody."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from nursery import Nursery

from local_cluster import LocalCluster, Node, Step, send, softrun_command

pytestmark = [pytest.mark.processes, pytest.mark.slow]

Start = Callable[..., Node]
Losses = dict[int, str]
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "train_hsdp.py")
STEPS = 50
REPLACE = ("--worker_failure=replace", "--max_restarts=3")


def train(start: Start, name: str, steps: int = STEPS, **options: object) -> Node:
    return start(name, EXAMPLE, str(steps), **options)


def losses(node: Node) -> Losses:
    """By step, as rank 0 printed them."""
    return {int(step): loss for step, loss in re.findall(r"step (\d+), loss (\S+)", node.output())}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Losses:
    """The losses of a run that lost nobody."""
    command = softrun_command("--restart_policy=soft", "--nproc_per_node=4", script=Path(EXAMPLE), args=(str(STEPS),))
    with LocalCluster(tmp_path_factory.mktemp("calm"), begin=nursery.begin) as cluster:
        node = cluster.start("calm", command)
        assert node.wait() == 0, node.output()
        assert sorted(losses(node)) == list(range(1, STEPS + 1))
        return losses(node)


def kill(steps: list[Step], *ranks: int) -> float:
    """SIGKILL these ranks of the newest world; returns when."""
    newest = max(step.round for step in steps)
    victims = {step.rank: step.pid for step in steps if step.round == newest}
    at = time.monotonic()
    for rank in ranks:
        send(victims[rank], signal.SIGKILL)
    return at


def test_two_losses_and_returns_change_no_digit_of_a_loss(cluster: LocalCluster, start: Start, told: Losses) -> None:
    """All worlds have the same size and a returned rank has its replica's shard: the same sums in the same order."""
    at = time.monotonic()
    node = train(start, "a", nproc=4, flags=REPLACE)
    for victim in (3, 0):
        at = kill(cluster.wait_for_steps(4, after=at), victim)
    assert node.wait() == 0, node.output()
    printed = losses(node)
    assert len(printed) >= STEPS - 1, "the rank 0 that died may not have printed its last step"
    assert printed.items() <= told.items()


def test_a_whole_replica_joins_is_lost_and_returns(cluster: LocalCluster, start: Start, told: Losses) -> None:
    """A world of another size sums in another order: nearly the same losses."""
    at = time.monotonic()
    a = train(start, "a", 100_000, nnodes="1:2")
    cluster.wait_for_steps(2, after=at)
    b = train(start, "b", 100_000, nnodes="1:2")
    cluster.wait_for_steps(4, after=at)
    at = b.kill()
    cluster.wait_for_steps(2, after=at)
    at = time.monotonic()
    train(start, "b2", 100_000, nnodes="1:2")
    cluster.wait_for_steps(4, after=at)
    cluster.wait_for("as many steps as the other run had", lambda: len(losses(a)) > STEPS)
    printed = losses(a)
    untold = set(range(1, max(printed) + 1)) - set(printed)
    assert len(untold) <= 1, "rank 0 says nothing of the step in which the other was lost, if it has the gradients"
    assert all(abs(float(printed[step]) - float(told[step])) < 0.01 for step in told if step not in untold)


def test_a_shard_that_is_lost_with_all_its_ranks_is_not_made_up(cluster: LocalCluster, start: Start) -> None:
    at = time.monotonic()
    node = train(start, "a", nproc=4, flags=REPLACE)
    kill(cluster.wait_for_steps(4, after=at), 1, 3)
    cluster.wait_for("the error", lambda: "StateLostError: all ranks that had the part of the state" in node.output())
