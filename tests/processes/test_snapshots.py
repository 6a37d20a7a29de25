"""What no survivor has comes back from the memory of the nodes."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, send, shown_by

pytestmark = [pytest.mark.processes, pytest.mark.slow]

Start = Callable[..., Node]
STEPS, EVERY = 150, 10
FLAGS = ("--worker_failure=replace", "--max_restarts=20")


def ends(directory: Path) -> set[str]:
    """What the ranks that came to the end have told: the step, and a digest of the weights."""
    return {path.read_text() for path in directory.glob("ended-*")}


def last_beginning(directory: Path) -> int:
    """The step from which all ranks of the last world went on."""
    last = max(int(path.name.split("-")[1]) for path in directory.glob("began-*"))
    (step,) = {int(path.read_text()) for path in directory.glob(f"began-{last}-*")}
    assert step % EVERY == 0
    return step


@pytest.fixture
def undisturbed(start: Start, tmp_path: Path) -> Callable[[str, int], str]:
    """`undisturbed("sharded", 4)`: the end of a run that loses nobody."""

    def run(kind: str, size: int) -> str:
        directory = tmp_path / "undisturbed"
        directory.mkdir()
        args = (str(directory), kind, str(size), str(STEPS), str(EVERY))
        node = start("u", "kept.py", *args, nnodes="1", nproc=size, flags=FLAGS, job="undisturbed")
        assert node.wait() == 0, node.output()
        (end,) = ends(directory)
        return end

    return run


def trained(cluster: LocalCluster, since: int, steps: int, size: int) -> list[int]:
    """The workers, once each of them has made so many steps, as the log tells from its line `since`."""
    done = Counter(step.pid for step in cluster.steps()[since:])
    return sorted(done) if len(done) == size and min(done.values()) >= steps else []


@pytest.mark.parametrize(("policy", "kind"), [("hard", "replicated"), ("soft", "sharded")])
def test_workers_that_all_start_again_go_on_from_memory(
    cluster: LocalCluster,
    start: Start,
    tmp_path: Path,
    undisturbed: Callable[[str, int], str],
    policy: str,
    kind: str,
) -> None:
    expected = undisturbed(kind, 2)
    before = len(cluster.steps())
    directory = tmp_path / "broken"
    directory.mkdir()
    args = (str(directory), kind, "2", str(STEPS), str(EVERY))
    flags = FLAGS if policy == "soft" else FLAGS[1:]
    node = start("a", "kept.py", *args, policy=policy, nnodes="1", nproc=2, flags=flags)
    for pid in cluster.wait_for("steps", lambda: trained(cluster, before, 55, 2)):
        send(pid, signal.SIGKILL)
    assert node.wait() == 0, node.output()
    assert ends(directory) == {expected}
    assert EVERY <= last_beginning(directory) <= STEPS


def test_a_storm_of_faults_changes_no_weight(
    cluster: LocalCluster, start: Start, tmp_path: Path, undisturbed: Callable[[str, int], str]
) -> None:
    """All workers die, a node with its shards, which its neighbour has, and a keeper; also while a snapshot is written,
    copied or loaded."""
    expected = undisturbed("sharded", 4)
    directory = tmp_path / "broken"
    directory.mkdir()
    args = (str(directory), "sharded", "4", str(STEPS), str(EVERY))

    def node(name: str) -> Node:
        return start(name, "kept.py", *args, nnodes="1:2", nproc=2, flags=FLAGS)

    nodes = [node("a"), node("b")]
    draw = random.Random("sharded")
    for number, fault in enumerate(draw.sample(["workers", "keeper", "node"], 3)):
        before, wanted = len(cluster.steps()), draw.randrange(60, 100)
        cluster.wait_for("steps", lambda before=before, wanted=wanted: len(cluster.steps()) > before + wanted)
        if fault == "workers":
            for pid in {step.pid for step in cluster.steps()[-8:]}:
                send(pid, signal.SIGKILL)
        elif fault == "keeper":
            (keeper,) = (pid for pid in nodes[0].family() if "keeper_main" in shown_by(pid))
            send(keeper, signal.SIGKILL)
        else:
            nodes[1].kill()
            nodes[1] = node(f"new{number}")
    for each in nodes:
        assert each.wait() == 0, each.output()
    assert ends(directory) == {expected}
    assert EVERY <= last_beginning(directory) <= STEPS
