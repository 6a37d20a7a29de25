"""Programs written for nvidia-resiliency-ext run with their import changed alone, with faults, to the end.

They have the shape of the original's public examples: under softrun's agents, under torchrun, and started one by one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, free_port, send, shown_by
from softrun.agent.links.handshake import Dialling, Identity

pytestmark = [pytest.mark.processes, pytest.mark.slow]

Start = Callable[..., Node]
PROGRAMS = Path(__file__).parent / "programs"
RANKS = 4


def through(output: str) -> list[tuple[int, int, int]]:
    """Rank, world size and iteration of those that have come to their end."""
    found = re.findall(r"through: rank (\d+) of (\d+) in iteration (\d+)", output)
    return sorted((int(rank), int(size), int(iteration)) for rank, size, iteration in found)


def with_fault(program: str, fault: str, directory: Path) -> list[str]:
    """The command of a program in which this fault strikes once."""
    return [str(PROGRAMS / program), "--fault", fault, "--once", str(directory / "struck")]


def codes(nodes: list[Node]) -> list[int]:
    """How they end; a node that does not is shown."""
    try:
        return sorted(node.wait() for node in nodes)
    except TimeoutError:
        raise AssertionError("\n".join(node.output() for node in nodes)) from None


@pytest.mark.parametrize(
    ("program", "fault", "policy"),
    [
        ("basic.py", "exception", "no-replace"),
        ("basic.py", "kill", "replace"),
        ("basic.py", "kill", "record"),
        ("basic.py", "port", "no-replace"),  # whoever waits for the store that rank 0 could not host leaves at once
        ("optimal.py", "exception", "replace"),
        ("optimal.py", "kill", "no-replace"),
        ("optimal.py", "kill", "record"),
        ("optimal.py", "hang", "replace"),
    ],
)
def test_under_softruns_agents(start: Start, tmp_path: Path, program: str, fault: str, policy: str) -> None:
    flags = (f"--worker_failure={policy}", "--max_restarts=2")
    command = with_fault(program, fault, tmp_path)
    nodes = [start(name, *command, nnodes="2", flags=flags) for name in "ab"]
    ended = codes(nodes)
    output = "".join(node.output() for node in nodes)
    lost = fault == "kill" and policy == "record"
    assert ended == [0, 0], output
    most = 3 if program == "optimal.py" else RANKS
    # A replacement may come when the work is done, or when some are through: then all do it once more.
    sizes = {min(RANKS - 1, most)} if lost else {min(RANKS - (fault == "kill"), most), most}
    iterations = sorted({iteration for _, _, iteration in through(output)})
    assert len(iterations) <= 1 + (policy == "replace"), "the job's number, also on a replaced rank"
    last = [(rank, of) for rank, of, iteration in through(output) if iteration == iterations[-1]]
    assert last in [[(rank, size) for rank in range(size)] for size in sizes], output


@pytest.mark.parametrize(("fault", "rank"), [("exception", 1), ("kill", 1)])
def test_a_tree_and_nested_restarters(start: Start, tmp_path: Path, fault: str, rank: int) -> None:
    """Its store is kept over all iterations, so ranks that are lost are not replaced, as with the original."""
    command = [*with_fault("advanced.py", fault, tmp_path), "--fault-rank", str(rank)]
    node = start("a", *command, nnodes="1", nproc=RANKS, flags=("--worker_failure=record",))
    assert codes([node]) == [0], node.output()
    assert through(node.output()) == [(0, 3, 1), (1, 3, 1), (2, 3, 1)], "a reserve has taken the place of a lost rank"
    told = re.findall(r"\[NestedRestarter\] name=\[InProcess\] state=(\w+)(?: stage=(\w+))?", node.output())
    assert told == [("initialize", ""), ("handling", "starting"), ("handling", "completed"), ("finalized", "")]
    there = RANKS - (fault == "kill")
    # Nobody waits for a reserve to begin: if it has not, it has nothing to abort.
    assert node.output().count("aborted: in iteration 0") in (there - 1, there)


def test_the_retry_controller_ends_the_job_at_once(start: Start) -> None:
    """Whatever the policy: no restart of a worker would mend what all ranks have decided."""
    flags = ("--worker_failure=replace", "--max_restarts=5")
    node = start("a", str(PROGRAMS / "gives_up.py"), nnodes="1", nproc=2, flags=flags)
    assert codes([node]) == [1]
    begun = re.findall(r"iteration (\d) of rank (\d)", node.output())
    assert {iteration for iteration, _ in begun} == {"0", "1", "2"}, "one may be interrupted before it says so"
    assert len(begun) == len(set(begun)), "nobody begins again"


def one_by_one(cluster: LocalCluster, *command: str, size: int = RANKS) -> list[Node]:
    """As by `srun python`: each rank by itself."""
    job = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        cluster.start(f"rank{rank}", [sys.executable, *command], job | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(size)
    ]


@pytest.mark.parametrize(
    ("program", "fault", "rank"),
    [("basic.py", "kill", 0), ("optimal.py", "hang", 2)],
)
def test_started_one_by_one(cluster: LocalCluster, tmp_path: Path, program: str, fault: str, rank: int) -> None:
    """With nobody special: rank 0 may die, too."""
    ranks = one_by_one(cluster, *with_fault(program, fault, tmp_path), "--fault-rank", str(rank))
    lost = fault == "kill"
    ended = codes(ranks)
    output = "".join(node.output() for node in ranks)
    assert ended == [-9] * lost + [0] * (RANKS - lost), output
    size = min(RANKS - lost, 3 if program == "optimal.py" else RANKS)
    everywhere(output, size)


def everywhere(output: str, size: int) -> None:
    """All came through together: the fault costs one iteration, and so does each port of theirs that is taken."""
    ended = through(output)
    taken = output.count("name: EADDRINUSE")
    assert [(rank, of) for rank, of, _ in ended] == [(rank, size) for rank in range(size)], output
    (iteration,) = {iteration for _, _, iteration in ended}
    assert 1 <= iteration <= 1 + taken, output


def test_a_call_leaves_nothing_and_another_may_follow(cluster: LocalCluster) -> None:
    ranks = one_by_one(cluster, str(PROGRAMS / "twice.py"), size=2)
    assert codes(ranks) == [0, 0]
    for node in ranks:
        told = json.loads(node.output().splitlines()[-1])
        assert told["sizes"] == [2, 2]
        assert told["same"], told


def agent_of(cluster: LocalCluster, rank: Node) -> int:
    adopts = f"softrun.agent.adopt {rank.process.pid}"
    (agent,) = [pid for pid in cluster.orphans() if shown_by(pid).endswith(adopts)]
    return agent


def test_its_agents_are_open_to_nobody_else(cluster: LocalCluster, tmp_path: Path) -> None:
    at_work = tmp_path / "at_work"
    at_work.mkdir()
    ranks = one_by_one(cluster, str(PROGRAMS / "twice.py"), str(at_work), size=2)
    cluster.wait_for("all at work", lambda: len(list(at_work.iterdir())) == 2)
    stranger = Dialling(Identity("inprocess-0-1", "x", "127.0.0.1", 1, None), "", "").greeting + b"\n"
    refused = 0
    for rank in ranks:
        for host, port in listening(agent_of(cluster, rank)):
            assert host == "127.0.0.1"
            with socket.create_connection((host, port)) as sock:
                sock.sendall(stranger)
                sock.shutdown(socket.SHUT_WR)
                answer = sock.makefile("rb").readline()
                refused += b'"refused":"token"' in answer
                assert b"node" not in answer
    assert refused >= 2
    for rank in ranks:
        rank.signal(signal.SIGKILL)


def listening(pid: int) -> list[tuple[str, int]]:
    """Where a process listens for TCP."""
    sockets = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}  # noqa: PTH115 - of a link to no path
    found = []
    for line in [line for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            host, port = fields[1].split(":")
            four = socket.inet_ntoa(int(host, 16).to_bytes(4, "little")) if len(host) == 8 else host
            found.append((four, int(port, 16)))
    return found


def test_a_rank_whose_agent_is_killed_ends_and_the_others_go_on(cluster: LocalCluster, tmp_path: Path) -> None:
    at_work = tmp_path / "at_work"
    at_work.mkdir()
    ranks = one_by_one(cluster, str(PROGRAMS / "twice.py"), str(at_work), size=3)
    cluster.wait_for("all at work", lambda: len(list(at_work.iterdir())) == 3)
    victim = next(node for node in ranks if node.name == "rank2")
    send(agent_of(cluster, victim), signal.SIGKILL)
    assert codes(ranks) == [-signal.SIGKILL, 0, 0]
    assert "the agent of this process is gone, so this process ends" in victim.output()
    for node in ranks:
        if node is not victim:
            assert json.loads(node.output().splitlines()[-1])["sizes"] == [2]


def test_under_torchrun(cluster: LocalCluster, tmp_path: Path) -> None:
    """torchrun itself ends the job if a process dies."""
    flags = ["--nproc_per_node", "2", "--master_port", str(free_port())]
    program = with_fault("basic.py", "exception", tmp_path)
    node = cluster.start("torchrun", [sys.executable, "-m", "torch.distributed.run", *flags, *program])
    assert codes([node]) == [0], node.output()
    everywhere(node.output(), 2)


def test_a_rank_that_does_not_come_ends_the_call_in_one_line(cluster: LocalCluster) -> None:
    job = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    node = cluster.start("rank1", [sys.executable, str(PROGRAMS / "gives_up.py")], job | {"BARRIER_S": "3"})
    assert codes([node]) == [1]
    last = node.output().strip().splitlines()[-1]
    assert last.startswith("RuntimeError: Wrapper: rank 1 of 2 could not meet the others at MASTER_ADDR:MASTER_PORT")


def test_a_call_outside_of_any_job_ends_in_one_line(cluster: LocalCluster) -> None:
    node = cluster.start("alone", [sys.executable, str(PROGRAMS / "gives_up.py")])
    assert codes([node]) == [1]
    last = node.output().strip().splitlines()[-1]
    assert last.startswith("RuntimeError: this process has no world")
    assert last.endswith("start it with `python -m softrun [options] script.py`")


def test_a_program_may_have_its_own_store_at_master_port(cluster: LocalCluster) -> None:
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    job |= {"MASTER_PORT": str(free_port()), "MEETING_PORT": str(free_port())}
    program = [sys.executable, str(PROGRAMS / "hosts_store.py")]
    ranks = [cluster.start(f"rank{rank}", program, job | {"RANK": str(rank)}) for rank in range(2)]
    assert codes(ranks) == [0, 0], "".join(node.output() for node in ranks)
