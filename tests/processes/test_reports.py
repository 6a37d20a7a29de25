"""What users reported against torchrun, each report as a test that passes here.

All run under the hard policy, which is the default and does as torchrun should have done. The numbers are those of
pytorch's issues.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, Step, free_port
from local_etcd import LocalEtcd

pytestmark = [pytest.mark.processes, pytest.mark.slow]

Start = Callable[..., Node]
QUICK = "--rdzv_conf=keep_alive_interval=0.5,keep_alive_max_attempt=4,last_call_timeout=0.3"


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """Where the trainers look for what they shall do."""
    directory = tmp_path / "orders"
    directory.mkdir()
    return directory


@pytest.fixture
def begin(start: Start, orders: Path) -> Start:
    """Starts a node of one worker, which only sleeps."""

    def begin(name: str, *flags: str, nnodes: str = "1:4", conf: str = QUICK, **more: object) -> Node:
        options = {"policy": "hard", "nproc": 1, **more}
        return start(name, "told.py", str(orders), nnodes=nnodes, flags=(conf, *flags), **options)

    return begin


def now() -> float:
    return time.monotonic()


def pids(steps: list[Step]) -> dict[int, int]:
    """The process of each rank of the newest world."""
    last = max(s.round for s in steps)
    return {s.rank: s.pid for s in steps if s.round == last}


def order(orders: Path, name: str) -> float:
    at = now()
    (orders / name).touch()
    return at


def spare(cluster: LocalCluster, begin: Start, name: str) -> Node:
    """One node more than there are places, once it waits for one."""
    node = begin(name, nnodes="2", env={"LOGLEVEL": "INFO"})
    cluster.wait_for("it waits", lambda: "this node waits for one" in node.output())
    return node


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_111646_a_lost_node_is_noticed(cluster: LocalCluster, begin: Start, signum: int) -> None:
    a, b = begin("a"), begin("b")
    before = pids(cluster.wait_for_steps(2))
    at = b.signal_family(signum)
    after = pids(cluster.wait_for_steps(1, after=at))
    assert set(after) == {0}
    assert after[0] not in before.values(), "hard restarts the worker that has not failed"
    assert a.process.poll() is None


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("pause_s", [0.0, 2.0])
def test_67742_and_147064_a_node_leaves_and_rejoins(
    cluster: LocalCluster, begin: Start, signum: int, pause_s: float
) -> None:
    a, b = begin("a"), begin("b")
    cluster.wait_for_steps(2)
    at = b.signal(signum)
    assert b.wait() == 1
    if pause_s:
        cluster.wait_for_steps(1, after=at)  # the others have gone on without it
    at = now()
    c = begin("c")
    cluster.wait_for_steps(2, after=at)
    assert a.process.poll() is None
    assert c.process.poll() is None


def test_147064_a_rejoin_does_not_renew_the_restarts_of_others(
    cluster: LocalCluster, begin: Start, orders: Path
) -> None:
    once = "--max_restarts=1"
    a, b = begin("a", once), begin("b", once)
    cluster.wait_for_steps(2)
    at = order(orders, "exit-0")
    cluster.wait_for_steps(2, after=at)
    b.signal(signal.SIGTERM)
    b.wait()
    c = begin("c", once)
    cluster.wait_for_steps(2, after=now())
    order(orders, "exit-0")
    assert a.wait() == 1, "its only restart was spent before the others changed"
    assert c.wait() == 1, "and hard ends the job everywhere"


def test_146371_one_rank_exits_and_all_are_restarted(cluster: LocalCluster, begin: Start, orders: Path) -> None:
    nodes = [begin(name, "--max_restarts=1", nnodes="3") for name in "abc"]
    before = pids(cluster.wait_for_steps(3))
    at = order(orders, "exit-1")
    after = pids(cluster.wait_for_steps(3, after=at))
    assert not set(after.values()) & set(before.values())
    order(orders, "exit-1")
    assert [node.wait() for node in nodes] == [1, 1, 1], "none is left running, though the others only sleep"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "own address", "own name"])
def test_107021_69197_121944_any_name_of_the_endpoint(cluster: LocalCluster, begin: Start, host: str) -> None:
    if host.startswith("own"):
        try:
            name = socket.gethostname()
            address = socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0]
        except OSError:
            pytest.skip("this machine does not know its own name")
        host = name if host == "own name" else str(address)
    endpoint = ("c10d", f"{host}:{free_port()}")
    guest = f"{QUICK},is_host=false"  # it comes before there is anybody to connect to
    nodes = [begin("b", conf=guest, nnodes="2", backend=endpoint), begin("a", nnodes="2", backend=endpoint)]
    cluster.wait_for_steps(2)
    assert all(node.process.poll() is None for node in nodes)


def test_121944_more_agents_than_nodes(cluster: LocalCluster, begin: Start, orders: Path) -> None:
    nodes = [begin(name, nnodes="2") for name in "ab"]
    before = pids(cluster.wait_for_steps(2))
    nodes += [spare(cluster, begin, name) for name in "cd"]
    assert pids(cluster.wait_for_steps(2, after=now())) == before, "the two that are too many disturb nobody"
    order(orders, "finish")
    assert [node.wait() for node in nodes] == [0, 0, 0, 0]


@pytest.mark.etcd
def test_67616_a_node_fails_and_is_back_at_once_with_etcd(
    cluster: LocalCluster, begin: Start, etcd: LocalEtcd, orders: Path
) -> None:
    begin = partial(
        begin, backend=("etcd3", etcd.endpoint), job=f"job-{free_port()}", nnodes="1:2", conf=f"{QUICK},lease_ttl=4"
    )
    a, b = begin("a"), begin("b")
    cluster.wait_for_steps(2)
    a.kill()
    at = now()
    c = begin("c")
    grown = cluster.wait_for_steps(2, after=at)
    first = min(s.mono for s in grown if s.round == grown[-1].round)
    alone = [s for s in cluster.steps() if s.mono > first and s.world_size == 1]
    assert not alone, "there is one world, never two that each have a rank 0"
    order(orders, "finish")
    assert [b.wait(), c.wait()] == [0, 0]
    late = begin("d")
    assert late.wait() == 1
    assert "this job is over already" in late.output().splitlines()[-1]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_114097_a_spare_takes_a_lost_place(cluster: LocalCluster, begin: Start, orders: Path, signum: int) -> None:
    a, b = begin("a", nnodes="2"), begin("b", nnodes="2")
    before = pids(cluster.wait_for_steps(2))
    c = spare(cluster, begin, "c")
    assert pids(cluster.wait_for_steps(2, after=now())) == before
    b.signal(signum)
    assert b.wait() == (1 if signum != signal.SIGKILL else -signal.SIGKILL)
    cluster.wait_for_steps(2, after=now())
    d = spare(cluster, begin, "d")
    order(orders, "finish")
    assert [node.wait() for node in (a, c, d)] == [0, 0, 0], "who was never needed ends in good order"


def test_99684_and_dlrover_450_ranks_follow_the_nodes(cluster: LocalCluster, begin: Start) -> None:
    places = {"a": 2, "b": 0, "c": 1}
    nodes: dict[str, Node] = {}

    def come(name: str, process: str = "") -> None:
        nodes[name] = begin(process or name, f"--node_rank={places[name]}", nnodes="2:3")

    def settled(steps: list[Step]) -> dict[str, int]:
        rank = {pid: rank for rank, pid in pids(steps).items()}
        return {name: rank[pid] for name, node in nodes.items() for pid in node.family() if pid in rank}

    come("a")
    come("b")
    assert settled(cluster.wait_for_steps(2)) == {"b": 0, "a": 1}
    come("c")
    assert settled(cluster.wait_for_steps(3)) == places
    at = nodes.pop("c").kill()
    assert settled(cluster.wait_for_steps(2, after=at)) == {"b": 0, "a": 1}
    at = now()
    come("c", "c2")
    assert settled(cluster.wait_for_steps(3, after=at)) == places, "who comes back has its rank back"
    at = nodes.pop("b").kill()
    assert settled(cluster.wait_for_steps(2, after=at)) == {"c": 0, "a": 1}, "the node of rank 0 may be lost"


def test_108158_all_see_the_same_restart_count(cluster: LocalCluster, begin: Start, orders: Path) -> None:
    nodes = [begin(name, "--max_restarts=1", nnodes="3") for name in "abc"]
    cluster.wait_for_steps(3)
    for count, failing in enumerate((1, 2), start=1):
        at = order(orders, f"exit-{failing}")
        steps = cluster.wait_for_steps(3, after=at)  # of one round, which the trainer takes from the restart count
        assert max(s.round for s in steps) == count + 1
    assert all(node.process.poll() is None for node in nodes)


def test_119856_there_is_time_to_save(cluster: LocalCluster, begin: Start, orders: Path) -> None:
    (orders / "slow").touch()
    a = begin("a", "--shutdown_timeout=30", nnodes="1")
    cluster.wait_for_steps(1)
    a.signal(signal.SIGTERM)
    assert a.wait() == 1
    assert (orders / "saved-0").exists()


def test_119856_and_not_more_than_was_given(cluster: LocalCluster, begin: Start, orders: Path) -> None:
    (orders / "deaf").touch()
    a = begin("a", "--shutdown_timeout=1", "--max_restarts=1", nproc=2, nnodes="1")
    cluster.wait_for_steps(2)
    at = order(orders, "exit-1")  # the other one must be stopped for the restart
    cluster.wait_for_steps(2, after=at)
    a.signal(signal.SIGTERM)
    assert a.wait() == 1
    assert not cluster.orphans()


def test_119856_who_will_not_wait_need_not(cluster: LocalCluster, begin: Start, orders: Path) -> None:
    (orders / "deaf").touch()
    a = begin("a", "--shutdown_timeout=300", nnodes="1")
    cluster.wait_for_steps(1)
    a.signal(signal.SIGTERM)
    cluster.wait_for("the worker has heard it", lambda: (orders / "heard").exists())
    a.signal(signal.SIGQUIT)
    assert a.wait() == 1


def test_154849_sigusr1_reaches_the_workers(cluster: LocalCluster, begin: Start, orders: Path) -> None:
    (orders / "deaf").touch()  # and it takes SIGUSR1 for no reason to end
    a = begin("a", "--signals_to_handle=SIGTERM,SIGUSR1,SIGUSR2", "--shutdown_timeout=2", nproc=2, nnodes="1")
    workers = set(pids(cluster.wait_for_steps(2)).values())
    a.signal(signal.SIGUSR1)
    assert a.wait() == 1, "as with torchrun, a handled signal ends the launcher"
    assert {path.name: path.read_text() for path in orders.glob("usr1-*")} == {
        f"usr1-{pid}": "got one\n" for pid in workers
    }
    assert "got signal: 10" in a.output()


def test_154849_a_signal_that_is_not_handled_leaves_no_orphan(cluster: LocalCluster, begin: Start) -> None:
    a = begin("a", nnodes="1")
    cluster.wait_for_steps(1)
    a.signal(signal.SIGUSR1)
    assert a.wait() == -signal.SIGUSR1
    cluster.wait_for("its worker is gone", lambda: not cluster.orphans())


def test_150916_and_123678_one_agent_is_killed_and_the_other_goes_on(cluster: LocalCluster, begin: Start) -> None:
    a, b = begin("a"), begin("b")
    cluster.wait_for_steps(2)
    at = b.signal(signal.SIGKILL)
    b.wait()
    alone = pids(cluster.wait_for_steps(1, after=at))
    assert pids(cluster.wait_for_steps(1, after=now(), each=50)) == alone, "it is restarted once, not again and again"
    at = now()
    begin("c")
    cluster.wait_for_steps(2, after=at)
    assert a.process.poll() is None
