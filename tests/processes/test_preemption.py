"""Jobs that are told to end stop after one step, save, and go on from there when they are started again."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, send, softrun_command
from softrun import RESUME

pytestmark = [pytest.mark.processes, pytest.mark.slow]

Start = Callable[..., Node]
STEPS = 60
TOGETHER = "last_call_timeout=60"
"""All nodes are in the first world, however slowly they start."""
FLAGS = ("--shutdown_timeout=20", f"--rdzv_conf={TOGETHER}")


class Job:
    """A job that is started again and again, and what all of its runs have done."""

    def __init__(self, cluster: LocalCluster, start: Start, directory: Path) -> None:
        self._cluster, self._start, self.directory = cluster, start, directory
        self._run = -1

    def run(
        self,
        way: str = "callback",
        steps: int = STEPS,
        nodes: int = 1,
        flags: tuple[str, ...] = FLAGS,
        env: dict[str, str] | None = None,
        **options: str | int,
    ) -> list[Node]:
        """Start it, or start it again."""
        self._run += 1
        settings = {"RUN": str(self._run), **(env or {})}
        args = (str(self.directory), way, str(steps))
        return [
            self._start(f"{self._run}{name}", "saves.py", *args, flags=flags, env=settings, **options)
            for name in "abcd"[:nodes]
        ]

    def steps(self, run: int | None = None) -> dict[int, list[int]]:
        """The steps that each rank has committed in a run, the last one if none is named."""
        number = self._run if run is None else run
        done: dict[int, list[int]] = defaultdict(list)
        for path in self.directory.glob(f"steps-{number}-*"):
            for line in path.read_text().splitlines():
                if line[:1].isdecimal():
                    _, step, rank, _ = map(int, line.split())
                    done[rank].append(step)
        return done

    def trains(self, steps: int, ranks: int) -> None:
        """Wait until each rank has taken so many steps more than it has now."""
        before = {rank: len(done) for rank, done in self.steps().items()}

        def ready() -> bool:
            now = self.steps()
            return len(now) >= ranks and all(len(done) >= before.get(rank, 0) + steps for rank, done in now.items())

        self._cluster.wait_for("steps", ready)

    @property
    def saves(self) -> list[tuple[int, int]]:
        """Of each save its run and its step."""
        path = self.directory / "saves"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines]

    def is_done(self) -> bool:
        """Whether a worker has come to the end of its work."""
        return any(self.directory.glob("done-*"))

    def check(self, steps: int = STEPS) -> None:
        """No rank has lost or repeated a step in all runs."""
        assert self.is_done()
        runs = [self.steps(run) for run in range(self._run + 1)]
        for run in runs:
            assert len({tuple(done) for done in run.values()}) == 1, "the ranks have done the same steps"
        assert list(itertools.chain.from_iterable(run[0] for run in runs)) == list(range(1, steps + 1))


@pytest.fixture
def job(cluster: LocalCluster, start: Start, tmp_path: Path) -> Job:
    directory = tmp_path / "job"
    directory.mkdir()
    return Job(cluster, start, directory)


@pytest.mark.parametrize(
    ("way", "policy"), [("callback", "soft"), ("leaving", "soft"), ("jax", "hard"), ("callback", "hard")]
)
def test_a_job_of_one_node_that_is_told_to_end_loses_no_step(job: Job, way: str, policy: str) -> None:
    (node,) = job.run(way, nnodes="1", policy=policy)
    job.trains(10, ranks=2)
    node.signal(signal.SIGTERM)
    assert node.wait() == RESUME, node.output()
    assert "the job was told to end (signal 15)" in node.output()
    assert not job.is_done()
    assert len(job.saves) == 1
    (node,) = job.run(way, nnodes="1", policy=policy)
    assert node.wait() == 0, node.output()
    job.check()


@pytest.mark.parametrize(("nnodes", "apart"), [("2", 0), ("1:2", 0), ("1:2", 6)])
def test_all_nodes_are_told(job: Job, nnodes: str, apart: int) -> None:
    """As a scheduler does that ends a job: the first is not seen off as if the others went on."""
    nodes = job.run(nodes=2, nnodes=nnodes)
    job.trains(10, ranks=4)
    nodes[0].signal(signal.SIGTERM)
    job.trains(apart, ranks=4)
    nodes[1].signal(signal.SIGTERM)
    assert [node.wait() for node in nodes] == [RESUME, RESUME], nodes[0].output() + nodes[1].output()
    nodes = job.run(nodes=2, nnodes=nnodes)
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].output() + nodes[1].output()
    job.check()


def test_one_node_is_told_and_the_others_are_too_few(job: Job) -> None:
    nodes = job.run(nodes=2, nnodes="2")
    job.trains(10, ranks=4)
    nodes[1].signal(signal.SIGTERM)
    assert [node.wait() for node in nodes] == [RESUME, RESUME], nodes[0].output() + nodes[1].output()
    nodes = job.run(nodes=2, nnodes="2")
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].output() + nodes[1].output()
    job.check()


def test_one_node_is_told_and_the_others_go_on(job: Job) -> None:
    nodes = job.run("alone", nodes=2, nnodes="1:2", steps=100)
    job.trains(10, ranks=4)
    nodes[1].signal(signal.SIGTERM)
    assert nodes[1].wait() == 1
    assert "got signal: 15" in nodes[1].output()
    assert nodes[0].wait() == 0, nodes[0].output()
    told = [path.read_text() for path in job.directory.glob("alone-*")]
    assert len(told) == 2
    (step,) = {int(text) for text in told}
    assert {done[-1] for done in job.steps().values()} == {step, 100}
    assert job.steps()[0] == list(range(1, 101))
    assert job.saves == []


def test_a_time_limit_ends_the_job_in_time(job: Job) -> None:
    flags = ("--shutdown_timeout=20", "--time_limit=00:34")
    nodes = job.run(nodes=2, nnodes="2", steps=10_000, flags=flags)
    assert [node.wait() for node in nodes] == [RESUME, RESUME], nodes[0].output()
    assert "the job was told to end (the time limit of 34 s)" in nodes[0].output()
    ((_, saved),) = job.saves
    assert {done[-1] for done in job.steps().values()} == {saved}


def test_too_few_are_left_for_too_long(job: Job) -> None:
    """They have kept their state in memory, and save it before they give up."""
    flags = ("--shutdown_timeout=10", "--rdzv_conf=join_timeout=20,keep_alive_interval=0.3")
    nodes = job.run(nodes=2, nnodes="2", flags=flags)
    job.trains(10, ranks=4)
    nodes[0].kill()
    assert nodes[1].wait() == RESUME, nodes[1].output()
    assert "fewer than 2 nodes were there for 10 s" in nodes[1].output()
    nodes = job.run(nodes=2, nnodes="2", flags=flags)
    assert [node.wait() for node in nodes] == [0, 0]
    ((_, saved),) = job.saves
    first, second = job.steps(0), job.steps(1)
    assert {done[0] for done in second.values()} == {saved + 1}
    assert saved in {done[-1] for done in first.values()}, "the last step that anybody has committed"


def test_a_loop_that_counts_no_steps_saves_in_a_new_world(job: Job) -> None:
    nodes = job.run("rfc", nodes=2, nnodes="2")
    job.trains(10, ranks=4)
    for node in nodes:
        node.signal(signal.SIGTERM)
    assert [node.wait() for node in nodes] == [RESUME, RESUME], nodes[0].output() + nodes[1].output()
    assert len(job.saves) == 1
    nodes = job.run("rfc", nodes=2, nnodes="2")
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].output() + nodes[1].output()
    assert job.is_done()
    assert job.steps(1)[0][0] == job.saves[0][1] + 1


def test_a_rank_dies_while_all_save(cluster: LocalCluster, job: Job) -> None:
    nodes = job.run(nodes=2, nnodes="1:2", env={"DIES_SAVING": "1"})
    job.trains(10, ranks=4)
    for node in nodes:
        node.signal(signal.SIGTERM)
    codes = sorted(node.wait() for node in nodes)
    assert codes == [1, RESUME], nodes[0].output() + nodes[1].output()
    nodes = job.run(nodes=2, nnodes="1:2")
    assert [node.wait() for node in nodes] == [0, 0]
    assert job.steps(1)[0][0] == max(done[-1] for done in job.steps(0).values()) + 1


def test_a_save_that_fails_fails_the_job(job: Job) -> None:
    (node,) = job.run(nnodes="1", env={"FAILS_SAVING": "1"})
    job.trains(10, ranks=2)
    node.signal(signal.SIGTERM)
    assert node.wait() == 1
    assert "no room on the disk" in node.output()


def test_a_save_that_takes_too_long_is_ended(job: Job) -> None:
    (node,) = job.run(nnodes="1", flags=("--shutdown_timeout=2",), env={"HANGS_SAVING": "1"})
    job.trains(10, ranks=2)
    node.signal(signal.SIGTERM)
    assert node.wait() == 1, "nothing was saved"
    assert "the time to save is over" in node.output()
    assert not job.is_done()


def test_who_will_not_wait_ends_them_at_once(cluster: LocalCluster, job: Job) -> None:
    (node,) = job.run(nnodes="1", env={"HANGS_SAVING": "1"})
    job.trains(10, ranks=2)
    node.signal(signal.SIGTERM)
    cluster.wait_for("they save", lambda: (job.directory / "hangs").exists())
    node.signal(signal.SIGHUP)
    cluster.wait_for("it says how", lambda: "SIGQUIT, or Ctrl-C three times" in node.output())
    node.signal(signal.SIGQUIT)
    assert node.wait() == 1


def test_a_signal_that_is_repeated_is_no_hurry(cluster: LocalCluster) -> None:
    """A wrapper script and its process group, SIGTERM and then SIGHUP: a plain trainer saves all the same."""
    script = cluster.directory / "script.py"
    script.write_text(
        "import signal, sys, time\n"
        "def save(*_):\n"
        "    print('begins', flush=True)\n"
        "    time.sleep(1)\n"
        "    print('saved', flush=True)\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('trains', flush=True)\n"
        "time.sleep(100)\n"
    )
    node = cluster.start("node", softrun_command("--nproc_per_node=2", script=script))
    cluster.wait_for("training", lambda: node.output().count("trains") == 2)
    node.signal(signal.SIGTERM)
    cluster.wait_for("saving", lambda: node.output().count("begins") == 2)
    node.signal(signal.SIGTERM)
    node.signal(signal.SIGHUP)
    assert node.wait() == 1
    assert node.output().count("saved") == 2, node.output()


def test_a_job_is_told_to_end_again_and_again(job: Job) -> None:
    """SOFTRUN_TIMES=50 scripts/test -k again_and_again: as often."""
    draw, times = random.Random(1), int(os.environ.get("SOFTRUN_TIMES", "3"))
    steps = 60 * (times + 1)
    for _ in range(times):
        nodes = job.run(nodes=2, nnodes="1:2", steps=steps)
        job.trains(draw.randrange(3, 30), ranks=4)
        for node in draw.sample(nodes, 2):
            node.signal(signal.SIGTERM)
        assert [node.wait() for node in nodes] == [RESUME, RESUME], nodes[0].output() + nodes[1].output()
    nodes = job.run(nodes=2, nnodes="1:2", steps=steps)
    assert [node.wait() for node in nodes] == [0, 0]
    job.check(steps)
    assert [run for run, _ in job.saves] == list(range(times))


def test_a_worker_is_killed_before_the_agreed_step(job: Job) -> None:
    """The others save in a world without it."""
    nodes = job.run(nodes=2, nnodes="1:2", flags=(*FLAGS, "--worker_failure=replace"), env={"STEP_S": "0.3"})
    job.trains(4, ranks=4)
    for node in nodes:
        node.signal(signal.SIGTERM)
    send(max(int(path.name.split("-")[2]) for path in job.directory.glob("steps-0-*")), signal.SIGKILL)
    codes = sorted(node.wait() for node in nodes)
    assert codes[1] == RESUME, nodes[0].output() + nodes[1].output()
    nodes = job.run(nodes=2, nnodes="1:2")
    assert [node.wait() for node in nodes] == [0, 0]
    assert job.steps(1)[0][0] == job.saves[-1][1] + 1
