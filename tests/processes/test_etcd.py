"""Jobs that meet in a real etcd: no node is special, and etcd itself may fail."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, Step, free_port, listens, recovery
from local_etcd import LocalEtcd
from softrun.agent.store.etcd import OVER_LEASE_S

pytestmark = [pytest.mark.processes, pytest.mark.etcd]

Start = Callable[..., Node]
SHORT = "--rdzv_conf=lease_ttl=2,keep_alive_interval=0.5"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalEtcd]:
    """One member that this test may harm."""
    (tmp_path / "etcd").mkdir()
    with LocalEtcd(tmp_path / "etcd") as etcd:
        yield etcd


@pytest.fixture
def three(tmp_path: Path) -> Iterator[LocalEtcd]:
    """Three members that this test may harm."""
    (tmp_path / "etcd").mkdir()
    with LocalEtcd(tmp_path / "etcd", 3) as etcd:
        yield etcd


def nodes(cluster: LocalCluster, start: Start, etcd: LocalEtcd, *flags: str, trainer: str = "reduce.py") -> list[Node]:
    started = [
        start(name, trainer, "100000", "0.02", nproc=1, backend=("etcd3", etcd.endpoint), flags=flags) for name in "abc"
    ]
    cluster.wait_for_steps(3)
    return started


def newest(steps: list[Step]) -> set[int]:
    last = max(s.round for s in steps)
    return {s.pid for s in steps if s.round == last}


def no_step_was_lost(steps: list[Step], pids: set[int]) -> bool:
    """Each process went on step by step, in one world."""
    for pid in pids:
        own = [s for s in steps if s.pid == pid]
        if any(after.step != before.step + 1 or after.round != before.round for before, after in pairwise(own)):
            return False
    return True


def the_rest_goes_on(cluster: LocalCluster, killed: Node) -> float:
    """Seconds until the survivors of its death step again."""
    survivors = newest(cluster.steps()) - set(killed.family())
    at = killed.kill()
    return cluster.wait_for("recovery", lambda: recovery(cluster.steps(), at, survivors))


def test_any_node_may_die_the_first_one_too(cluster: LocalCluster, start: Start, own: LocalEtcd) -> None:
    a, b, _ = nodes(cluster, start, own)
    the_rest_goes_on(cluster, a)
    d = start("d", "reduce.py", "100000", "0.02", nproc=1, backend=("etcd3", own.endpoint))
    cluster.wait_for_steps(3, after=time.monotonic())
    the_rest_goes_on(cluster, b)
    assert d.process.poll() is None
    the_rest_goes_on(cluster, d)


@pytest.mark.slow
def test_a_job_that_ends_leaves_only_what_expires(cluster: LocalCluster, start: Start, own: LocalEtcd) -> None:
    started = [
        start(name, "reduce.py", "20", "0.001", nproc=1, nnodes="2", backend=("etcd3", own.endpoint)) for name in "ab"
    ]
    assert [node.wait() for node in started] == [0, 0]
    keys = own.ctl("get", "softrun/", "--prefix", "--keys-only").split()
    assert {*keys} == {"softrun/test/record"}, "the leases of the agents are revoked"
    fields = own.ctl("get", "softrun/test/", "--prefix", "-w", "fields")
    leases = {line.split(" : ")[1] for line in fields.splitlines() if line.startswith('"Lease"')}
    assert "0" not in leases
    for lease in leases:
        left = own.ctl("lease", "timetolive", f"{int(lease):x}", "-w", "fields")
        assert 0 < int(re.findall(r'"TTL" : (\d+)', left)[0]) <= OVER_LEASE_S, "then the job's name may be used again"


@pytest.mark.slow
def test_etcd_is_away_and_no_step_is_lost(cluster: LocalCluster, start: Start, three: LocalEtcd) -> None:
    a, *_ = nodes(cluster, start, three)
    before = newest(cluster.steps())
    for member in range(3):
        three.kill(member)
    at = time.monotonic()
    cluster.wait_for("it is noticed", lambda: "etcd cannot be reached" in a.output())
    cluster.wait_for("ten seconds", lambda: time.monotonic() - at >= 10)
    for member in range(3):
        three.start_again(member)
    cluster.wait_for("it is noticed", lambda: "etcd is back after" in a.output())
    after = cluster.wait_for_steps(3, after=time.monotonic())
    assert newest(after) == before
    assert no_step_was_lost([s for s in cluster.steps() if s.mono > at], before)
    assert a.output().count("etcd cannot be reached") == 1

    d = start("d", "reduce.py", "100000", "0.02", nproc=1, backend=("etcd3", three.endpoint))
    assert before < newest(cluster.wait_for_steps(4, after=time.monotonic())), "and the job can change again"
    assert d.process.poll() is None


@pytest.mark.slow
def test_etcd_is_away_for_longer_than_a_lease(cluster: LocalCluster, start: Start, own: LocalEtcd) -> None:
    started = nodes(cluster, start, own, SHORT)
    before = newest(cluster.steps())
    own.kill(0)
    for node in started:
        cluster.wait_for("its workers stop", lambda node=node: "may expire: its workers stop" in node.output())  # type: ignore[misc]
    own.start_again(0)
    after = cluster.wait_for_steps(3, after=time.monotonic())
    assert newest(after) == before, "they were paused, not ended"


@pytest.mark.slow
def test_a_worker_that_does_not_leave_is_ended_before_the_lease(
    cluster: LocalCluster, start: Start, own: LocalEtcd
) -> None:
    node = start("a", "stubborn.py", nproc=1, nnodes="1", backend=("etcd3", own.endpoint), flags=(SHORT,))
    cluster.wait_for("it works", lambda: "at work" in node.output())
    own.kill(0)
    cluster.wait_for("it is ended", lambda: "did not leave its world in time" in node.output())
    own.start_again(0)
    cluster.wait_for("it begins anew", lambda: node.output().count("at work") == 2)
    assert node.process.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_dies_while_etcd_changes_its_leader(
    cluster: LocalCluster, start: Start, three: LocalEtcd, fault: int
) -> None:
    a, b, c = nodes(cluster, start, three)
    leader = three.leader()
    three.signal(leader, fault)
    took = the_rest_goes_on(cluster, a)
    assert took < 15, "bounded by the election and a call's time"
    if fault == signal.SIGSTOP:
        three.signal(leader, signal.SIGCONT)
        the_rest_goes_on(cluster, b)
        assert c.process.poll() is None


@pytest.mark.slow
def test_a_member_of_etcd_is_lost_and_nobody_notices(cluster: LocalCluster, start: Start, three: LocalEtcd) -> None:
    nodes(cluster, start, three)
    before = newest(cluster.steps())
    at = time.monotonic()
    three.kill((three.leader() + 1) % 3)
    start("d", "reduce.py", "100000", "0.02", nproc=1, backend=("etcd3", three.endpoint))
    grown = cluster.wait_for_steps(4, after=at)
    assert before < newest(grown)


@pytest.mark.slow
def test_a_node_that_was_stopped_for_longer_than_its_lease(cluster: LocalCluster, start: Start, own: LocalEtcd) -> None:
    _, b, _ = nodes(cluster, start, own, SHORT, trainer="count.py")
    steps = cluster.steps()
    frozen = {s.pid for s in steps} & set(b.family())
    at = b.signal_family(signal.SIGSTOP)
    assert newest(cluster.wait_for_steps(2, after=at)) == newest(steps) - frozen
    at = b.signal_family(signal.SIGCONT)
    grown = cluster.wait_for_steps(3, after=at)
    assert newest(grown) == newest(steps), "its workers were paused, not ended"
    assert "it joins again" in b.output()


@pytest.mark.slow
def test_nothing_of_etcd_gets_into_the_workers(cluster: LocalCluster, start: Start, etcd: LocalEtcd) -> None:
    backend = ("etcd3", etcd.endpoint)
    node = start("a", "count.py", "10000", "0.01", backend=backend, job="clean", env={"SOFTRUN_ETCD_PASSWORD": "hush"})
    for pid in newest(cluster.wait_for_steps(2)):
        names = {entry.partition("=")[0] for entry in Path(f"/proc/{pid}/environ").read_text().split("\0")}
        added = names - set(os.environ)
        assert not {name for name in added if name.startswith(("GRPC", "PROTOCOL_BUFFERS", "ETCD", "SOFTRUN_ETCD"))}
    assert "hush" not in node.output()


def test_the_script_starts_one_and_ends_it(cluster: LocalCluster) -> None:
    port = free_port()
    script = Path(__file__).parents[2] / "scripts" / "local_etcd.py"
    node = cluster.start("etcd", [sys.executable, str(script), f"--port={port}"])
    said = f"--rdzv_backend etcd3 --rdzv_endpoint 127.0.0.1:{port}\n"
    cluster.wait_for("it says how to use it", lambda: said in node.output())
    assert listens(port)
    node.signal(signal.SIGTERM)
    assert node.wait() == 128 + signal.SIGTERM
    assert not listens(port)


@pytest.mark.slow
def test_an_etcd_that_is_not_there_ends_in_one_line(cluster: LocalCluster, start: Start) -> None:
    node = start("a", "count.py", "1", "0", backend=("etcd3", "127.0.0.1:1"), flags=("--rdzv_conf=read_timeout=1",))
    assert node.wait() == 1
    [line] = node.output().splitlines()
    assert "no etcd answers at 127.0.0.1:1" in line
