"""Blocks of live_workers succeed on all or raise on all, whatever dies: real workers record what they see of it.

Each job ends with the same state on all its workers, and its recording is judged in the strictest mode.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from nursery import Nursery

from local_cluster import LocalCluster, Node, alive, has_ended, send
from softrun.testing import check, gather
from storm.job import play
from storm.live import LiveJob
from storm.long_job import TRAINERS

pytestmark = [pytest.mark.processes, pytest.mark.slow]

Start = Callable[..., Node]
SHAPES = {"1 node of 4": (1, 4), "2 nodes of 2": (2, 2)}
REPLACE = ("--worker_failure=replace", "--max_restarts=1000")
QUICK = "--rdzv_conf=keep_alive_interval=0.4,keep_alive_max_attempt=5"


@dataclass
class Job:
    """Nodes whose workers take steps in blocks, and record their calls."""

    cluster: LocalCluster
    start: Start
    directory: Path
    nproc: int
    env: dict[str, str]
    flags: tuple[str, ...] = ()

    def come(self, name: str) -> Node:
        flags = (*REPLACE, QUICK, *self.flags)
        return self.start(
            name, str(TRAINERS / "live.py"), str(self.directory), nproc=self.nproc, flags=flags, env=self.env
        )

    def at_work(self, workers: int = 4) -> list[int]:
        """Wait until so many workers have taken three more steps in one world; returns them."""
        before = max((step.mono for step in self.cluster.steps()), default=0.0)
        seen = self.cluster.wait_for_steps(workers, before)
        newest = max(step.round for step in seen)
        return sorted({step.pid for step in seen if step.round == newest})

    def strike(self, what: str, phase: str) -> int:
        """Have the first worker that comes to a phase of its step do this; returns it."""
        (self.directory / f"{what}-{phase}").touch()
        return self.struck(what, phase)

    def struck(self, what: str, phase: str) -> int:
        """Wait until a worker has done this; returns it."""
        done = f"did-{what}-{phase}-"

        def first() -> Path | None:
            return next(self.directory.glob(f"{done}*"), None)

        path = self.cluster.wait_for(f"a worker comes to {what} {phase}", first)
        path.unlink()
        return int(path.name.removeprefix(done))

    def log(self, worker: int) -> list[str]:
        """What a worker has said of its blocks that failed."""
        return (self.directory / f"log-{worker}").read_text().splitlines()

    def said_since(self, before: dict[int, int]) -> dict[int, str]:
        """The last line of each worker's log, once each has more lines than before."""
        what = "all say why their block failed"
        self.cluster.wait_for(what, lambda: all(len(self.log(worker)) > lines for worker, lines in before.items()))
        return {worker: self.log(worker)[-1] for worker in before}

    def finish(self, *nodes: Node, workers: int = 4) -> None:
        """Let it come to its end: all are told the same, and what they saw was right."""
        self.at_work(workers)
        (self.directory / "finish").touch()
        assert [node.wait() for node in nodes] == [0] * len(nodes), "\n".join(node.output() for node in nodes)
        told = [path.read_text() for path in self.directory.glob("told-*")]
        assert len(told) == workers
        assert len(set(told)) == 1, told
        verdict = check(gather(self.directory / "history"))
        assert verdict, str(verdict)


@pytest.fixture
def new_job(cluster: LocalCluster, start: Start, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    def new(nproc: int, **env: str) -> Job:
        directory = tmp_path / "job"
        directory.mkdir()
        return Job(cluster, start, directory, nproc, env)

    return new


@pytest.fixture(params=SHAPES.values(), ids=list(SHAPES))
def shape(request: pytest.FixtureRequest) -> tuple[int, int]:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize(("count", "nproc", "commit"), [(1, 4, "fast"), (2, 2, "fast"), (2, 2, "durable")])
def test_a_member_is_killed_in_a_block(new_job: Callable[..., Job], count: int, nproc: int, commit: str) -> None:
    """Wherever it is: at the begin, before the collective, behind it, and between two blocks."""
    job = new_job(nproc)
    job.flags = (f"--commit={commit}",)
    nodes = [job.come(name) for name in "ab"[:count]]
    workers = set(job.at_work())
    for phase in ("begun", "built", "before", "after", "ended"):
        workers -= {job.strike("kill", phase)}
        after = set(job.at_work())
        assert workers < after, "the others go on in their processes, with a replacement"
        in_vain = [" PeerFailed: lost in this block: " in line for pid in workers for line in job.log(pid)]
        assert all(in_vain)
        assert len(in_vain) >= len(workers)
        workers = after
    job.finish(*nodes)


def test_one_raises_while_the_others_wait_for_it_in_a_collective(
    new_job: Callable[..., Job], shape: tuple[int, int]
) -> None:
    """All raise, and nobody loses its process; also who is so slow that it has yet to come to its block."""
    job = new_job(shape[1])
    nodes = [job.come(name) for name in "ab"[: shape[0]]]
    workers = job.at_work()
    for phase, one_lags in (("before", False), ("before", True), ("after", False)):
        before = {pid: len(job.log(pid)) for pid in workers}
        if one_lags:
            job.strike("lag", "after")
        raising = job.struck("raise", phase) if one_lags else job.strike("raise", phase)
        assert job.at_work() == workers
        said = {pid: line.partition(" ") for pid, line in job.said_since(before).items()}
        assert len({step for step, _, _ in said.values()}) == 1, "in the same step"
        assert said.pop(raising)[2] == f"ValueError: a fault {phase}"
        failed = rf"PeerFailed: \S+/\d failed in this block: ValueError: a fault {phase}"
        assert all(re.fullmatch(failed, text) for _, _, text in said.values()), said
    job.finish(*nodes)


def test_a_worker_stands_still_for_a_moment(new_job: Callable[..., Job]) -> None:
    """The others wait for it."""
    job = new_job(2)
    nodes = [job.come(name) for name in "ab"]
    workers = job.at_work()
    for pid in workers[:2]:
        send(pid, signal.SIGSTOP)
        count = len(job.cluster.steps())
        with pytest.raises(TimeoutError):
            job.cluster.wait_for("steps", lambda count=count: len(job.cluster.steps()) > count + 8, 1)
        send(pid, signal.SIGCONT)
        assert job.at_work() == workers
    job.finish(*nodes)


def test_a_worker_stands_still_for_so_long_that_the_others_go_on_without_it(new_job: Callable[..., Job]) -> None:
    """It comes back in its process."""
    job = new_job(4)
    job.flags = ("--soft_timeout=1",)
    node = job.come("a")
    workers = job.at_work()
    send(workers[2], signal.SIGSTOP)
    assert job.at_work(3) == [pid for pid in workers if pid != workers[2]]
    send(workers[2], signal.SIGCONT)
    assert job.at_work() == workers
    job.finish(node)


@pytest.mark.parametrize(("who", "commit"), [("first", "fast"), ("second", "fast"), ("second", "durable")])
def test_a_node_joins_and_another_is_told_to_leave(new_job: Callable[..., Job], who: str, commit: str) -> None:
    """Where the first node stays, which decides the blocks, no block is lost."""
    job = new_job(2)
    job.flags = (f"--commit={commit}",)
    nodes = [job.come("a")]
    before = job.at_work(2)
    nodes.append(job.come("b"))
    workers = job.at_work()
    leaves, stays = nodes if who == "first" else nodes[::-1]
    theirs = set(leaves.family())
    leaves.signal(signal.SIGTERM)
    assert leaves.wait() == 1
    assert set(job.at_work(2)) == set(workers) - theirs
    if who == "second":
        assert [job.log(pid) for pid in workers] == [[]] * 4
    else:  # the block that is under way may fail, also on those that leave
        assert all("Evicted" in line for pid in before for line in job.log(pid))
    job.finish(stays, workers=2)


def test_an_agent_stands_still_and_comes_back(new_job: Callable[..., Job]) -> None:
    """The others go on without its workers, which come back as newcomers, in their processes."""
    job = new_job(2)
    a, b = job.come("a"), job.come("b")
    workers = job.at_work()
    theirs = set(workers) & set(b.family())
    b.signal(signal.SIGSTOP)
    assert not theirs & set(job.at_work(2))
    b.signal(signal.SIGCONT)
    assert job.at_work() == workers
    job.finish(a, b)


def test_an_agent_stands_still_too_shortly_to_be_left(new_job: Callable[..., Job]) -> None:
    job = new_job(2)
    a, b = job.come("a"), job.come("b")
    workers = job.at_work()
    for node in (a, b):
        node.signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            job.cluster.wait_for("nothing", lambda: None, 0.3)
        node.signal(signal.SIGCONT)
        assert job.at_work() == workers
    job.finish(a, b)


def test_a_node_is_killed_and_started_again(new_job: Callable[..., Job]) -> None:
    job = new_job(2)
    a, b = job.come("a"), job.come("b")
    survivors = set(job.at_work()) - set(b.family())
    b.kill()
    assert set(job.at_work(2)) == survivors
    b = job.come("b again")
    assert survivors < set(job.at_work())
    job.finish(a, b)


def test_the_first_nodes_agent_is_killed_in_the_middle_of_blocks(new_job: Callable[..., Job]) -> None:
    """It decided the blocks. The others go on where it has left them: all at the same step."""
    job = new_job(2)
    nodes = [job.come(name) for name in "abc"]
    survivors = set(job.at_work(6)) - set(nodes[0].family())
    nodes[0].signal(signal.SIGKILL)
    assert set(job.at_work(4)) == survivors
    nodes.append(job.come("d"))
    job.at_work(6)
    job.finish(*nodes[1:], workers=6)


@pytest.mark.parametrize("who", ["the first", "all but one"])
def test_agents_are_killed_in_mid_block_again_and_again(new_job: Callable[..., Job], who: str) -> None:
    """The first node of a world leads, and decides its blocks.

    SOFTRUN_TIMES=100 scripts/test tests/processes/test_live.py -k mid_block: so often.
    """
    draw, job = random.Random(1), new_job(1)
    names = map(str, itertools.count())
    nodes = [job.come(next(names)) for _ in range(3)]
    for _ in range(int(os.environ.get("SOFTRUN_TIMES", "2"))):
        workers = job.at_work(3)
        first = next(step.pid for step in reversed(job.cluster.steps()) if step.rank == 0)
        spared = [n for n in nodes if first not in n.family()] if who == "the first" else [draw.choice(nodes)]
        killed = [node for node in nodes if node not in spared]
        survivors = {pid for node in spared for pid in node.family()} & set(workers)
        for node in killed:
            node.signal(signal.SIGKILL)
        assert set(job.at_work(len(spared))) == survivors, "they keep their processes"
        nodes = spared + [job.come(next(names)) for _ in killed]
    job.finish(*nodes, workers=3)


def test_a_worker_that_hangs_in_a_block_is_shown_and_ended(new_job: Callable[..., Job], shape: tuple[int, int]) -> None:
    job = new_job(shape[1], BLOCK_TIMEOUT="6")
    logs = job.directory / "logs"  # a file for each worker: all are shown at once
    job.flags = (f"--log_dir={logs}", "--redirects=3")
    nodes = [job.come(name) for name in "ab"[: shape[0]]]
    workers = job.at_work()
    hung = job.strike("hang", "before")
    assert has_ended(hung, 60)
    assert set(workers) - {hung} < set(job.at_work()), "the others go on in their processes, with a replacement"
    shown = [path.read_text() for path in logs.rglob("stderr.log")]
    hangs = [re.findall(r'File ".*live\.py", line \d+ in (\w+)', text)[:1] for text in shown]
    assert hangs.count(["reach"]) == 1, shown
    job.finish(*nodes)
    assert not alive(hung)


MISTAKES = {
    "nested": r"(RuntimeError|PeerFailed): .*live_mistakes\.py:\d+: a call inside the block that began at "
    r"live_mistakes\.py:\d+: end that first",
    "thread": r"RuntimeError: live_mistakes\.py:\d+: call live_workers and live_barrier in the main thread, not in "
    "another one",
    "other calls": r"CallMismatch: \S+ is at a barrier \(live_mistakes\.py:(\d+)\) while \S+ is at the begin of a "
    r"block \(live_mistakes\.py:(?!\1)\d+\): all workers must make the same calls in the same order",
    "other tags": r"CallMismatch: \S+ ends block 8 at live_mistakes\.py:\d+ while \S+ ends block 7 at "
    r"live_mistakes\.py:\d+: pass the same step on all workers",
    "scope": r"CallMismatch: live_mistakes\.py:\d+: no worker of this world is called 'nobody/0': take names from "
    r"`Live\.members`",
    "not in the scope": r"CallMismatch: live_mistakes\.py:\d+: the scope does not name \S+/\d, which asks",
    "empty scope": "ValueError: the scope is empty: leave it out to ask about all workers",
    "tag": "TypeError: a tag is a number, a text or None, and list is none: pass the step",
    "long tag": "TypeError: a tag has at most 200 characters, and this one 302: pass the step",
    "timeout": "ValueError: block_timeout -1 is no number of seconds above 0: leave it out for no limit",
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_on_every_worker_and_nobody_hangs(start: Start, case: str) -> None:
    node = start("a", "live_mistakes.py", case, nnodes="1", flags=("--max_restarts=0",))
    assert node.wait() == 0, node.output()
    lines = [line for line in node.output().splitlines() if re.match(r"\w+: ", line)]
    assert len(lines) == 2, node.output()
    assert all(re.fullmatch(MISTAKES[case], line) for line in lines), lines


@pytest.mark.parametrize("seed", [2])
def test_a_storm(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    """One seed of `scripts/soak --live`."""
    verdict = play(LiveJob, seed, tmp_path, nursery.begin)
    assert not verdict.complaints, f"{verdict}\n{verdict.story}"
    assert len(verdict.faults) == 10
