"""The wrapper on real processes: whatever befalls one rank, the others go on, and it comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, recovery
from local_etcd import LocalEtcd

pytestmark = pytest.mark.processes

Start = Callable[..., Node]
REPLACE = ("--worker_failure", "replace", "--max_restarts", "4")


class Training:
    """A job to which things befall."""

    def __init__(self, cluster: LocalCluster, faults: Path) -> None:
        self.cluster = cluster
        self.faults = faults

    def newest(self) -> dict[int, int]:
        """The process of each rank."""
        steps = self.cluster.steps()
        last = max(step.round for step in steps)
        return {step.rank: step.pid for step in steps if step.round == last}

    def iterations(self, pid: int) -> list[str]:
        return (self.faults / f"{pid}.iterations").read_text().splitlines()

    def befall(self, whom: dict[int, str], keeps_its_process: bool) -> dict[int, list[str]]:
        """Have that befall those ranks after one step; others keep their process. Their new iterations, by rank."""
        before = self.newest()
        healthy = {rank: pid for rank, pid in before.items() if keeps_its_process or rank not in whom}
        counts = {rank: len(self.iterations(pid)) for rank, pid in healthy.items()}
        at = time.monotonic()
        for rank, what in whom.items():
            unread = self.faults / f".{before[rank]}"
            unread.write_text(f"{len(whom)} {what}")
            unread.rename(self.faults / str(before[rank]))
        pids = set(healthy.values())
        self.cluster.wait_for("the others' next step", lambda: recovery(self.cluster.steps(), at, pids))
        self.cluster.wait_for_steps(len(before), after=time.monotonic())
        now = self.newest()
        assert len(now) == len(before), "who was lost was replaced"
        assert set(now.values()) >= pids
        assert (set(now.values()) == pids) == keeps_its_process
        return {rank: self.iterations(pid)[counts[rank] :] for rank, pid in healthy.items()}


def test_the_function_is_restarted_on_every_healthy_rank(cluster: LocalCluster, start: Start, tmp_path: Path) -> None:
    """Whatever befalls one of them, time and again."""
    faults = tmp_path / "faults"
    faults.mkdir()
    node = start("a", "wrapped.py", "1000000", str(faults), nproc=4, flags=REPLACE)
    cluster.wait_for_steps(4)
    training = Training(cluster, faults)
    # "waits for the last_call_wait interval to allow all concurrent faults from other distributed ranks to be recorded"
    iterations = training.befall({2: "second exception", 1: "exception"}, True)
    firsts = [iterations[rank][0] for rank in range(4)]
    assert firsts == ["1 NoneType", "1 ValueError", "1 ValueError", "1 NoneType"]
    for what, rank in {"sleep": 2, "livelock": 0}.items():
        training.befall({rank: what}, True)
    for what, rank in {"lock": 2, "kill": 0, "stop": 1, "hang in abort": 3}.items():
        training.befall({rank: what}, False)
    assert node.process.poll() is None


@pytest.mark.slow
@pytest.mark.etcd
def test_the_loss_of_rank_0_with_its_node_does_not_end_the_job(
    cluster: LocalCluster, start: Start, tmp_path: Path, etcd: LocalEtcd
) -> None:
    """Unlike in the guide: "node failure on rank 0 causes termination of the entire job"."""
    faults = tmp_path / "faults"
    faults.mkdir()
    short = "--rdzv_conf=lease_ttl=2,keep_alive_interval=0.5"
    nodes = [
        start(name, "wrapped.py", "1000000", str(faults), backend=("etcd3", etcd.endpoint), flags=(short,), job="loss")
        for name in "ab"
    ]
    cluster.wait_for_steps(4)
    training = Training(cluster, faults)
    of_rank_0 = training.newest()[0]
    lost = next(node for node in nodes if of_rank_0 in node.family())
    survivors = set(training.newest().values()) - set(lost.family())
    at = lost.kill()
    cluster.wait_for("the others' next step", lambda: recovery(cluster.steps(), at, survivors))
    cluster.wait_for_steps(2, after=time.monotonic())
    assert set(training.newest().values()) == survivors
    assert set(training.newest()) == {0, 1}


RECORD = ("--worker_failure", "record")


def test_who_leaves_by_system_exit_is_not_waited_for(cluster: LocalCluster, start: Start, tmp_path: Path) -> None:
    """Its process may take its time to end."""
    node = start("a", "leaves_call.py", str(tmp_path), "exit", nproc=3, nnodes="1", flags=RECORD)
    cluster.wait_for("the others' next iteration", lambda: (tmp_path / "0-1").exists() and (tmp_path / "1-1").exists())
    (tmp_path / "ends").touch()
    assert node.wait() == 0, node.output()
    assert not (tmp_path / "2-1").exists()


def test_who_is_unfit_after_a_fault_costs_one_iteration(start: Start, tmp_path: Path) -> None:
    node = start("a", "leaves_call.py", str(tmp_path), "unfit", nproc=3, nnodes="1", flags=RECORD)
    assert node.wait() == 0, node.output()
    assert {path.name for path in tmp_path.glob("*-[1-9]")} == {"0-1", "1-1"}


def test_a_job_of_which_nobody_has_completed_the_call_has_failed(
    cluster: LocalCluster, start: Start, tmp_path: Path
) -> None:
    """One has left it with exit code 0, so that the others were too few."""
    node = start("a", "leaves_call.py", str(tmp_path), "too few", nproc=3, nnodes="1", flags=RECORD)
    cluster.wait_for("they give up", lambda: node.output().count("exited with code 1") == 2)
    (tmp_path / "ends").touch()
    assert node.wait() == 1, node.output()


def test_the_first_world_of_a_call_has_every_rank_that_the_job_has(
    cluster: LocalCluster, start: Start, tmp_path: Path
) -> None:
    """One loads its model for longer than soft_timeout and hard_timeout before it makes the call."""
    node = start("a", "comes_late.py", str(tmp_path), "100", nproc=3, nnodes="1", flags=RECORD)
    cluster.wait_for("the last rank to load", (tmp_path / "loads").exists)
    time.sleep(2.0)  # longer than both limits of those that have come; nothing tells that they wait
    (tmp_path / "comes").touch()
    assert node.wait() == 0, node.output()
    assert {path.name for path in tmp_path.glob("*-of-*")} == {"0-of-3", "1-of-3", "2-of-3"}, node.output()


def test_a_job_whose_ranks_do_not_meet_in_time_has_failed(cluster: LocalCluster, start: Start, tmp_path: Path) -> None:
    """The last one does not do its part alone when it comes."""
    node = start("a", "comes_late.py", str(tmp_path), "1.5", nproc=3, nnodes="1", flags=RECORD)
    cluster.wait_for("the others to give up", lambda: "exited with code 1" in node.output())
    (tmp_path / "comes").touch()
    assert node.wait() == 1, node.output()
    assert "BarrierTimeout: Wrapper: barrier_timeout: not all ranks arrived within 1.5 s" in node.output()
    assert not list(tmp_path.glob("*-of-*"))
