"""An agent that gives no sign of itself keeps its workers out of a world that goes on elsewhere."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from local_cluster import LocalCluster, Node, Step
from local_etcd import LocalEtcd

pytestmark = pytest.mark.processes

Start = Callable[..., Node]


def workers_of(node: Node, steps: list[Step]) -> set[int]:
    return {s.pid for s in steps} & set(node.family())


def old_and_new_do_not_meet(cluster: LocalCluster, start: Start, flags: str, backend: tuple[str, str] | None) -> None:
    """The agent alone is stopped, and its workers' steps need nobody."""
    start("a", "count.py", "100000", "0.01", nproc=1, flags=(flags,), backend=backend)
    cluster.wait_for_steps(1)
    b = start("b", "count.py", "100000", "0.01", flags=(flags,), backend=backend)
    steps = cluster.wait_for_steps(3)
    old, frozen = steps[-1].round, workers_of(b, steps)
    assert len(frozen) == 2
    at = b.signal(signal.SIGSTOP)
    cluster.wait_for_steps(1, after=at, each=50)
    began = min(s.mono for s in cluster.steps() if s.round > old)
    assert not [s for s in cluster.steps() if s.pid in frozen and s.mono > began], "beside the new world"
    at = b.signal(signal.SIGCONT)
    grown = cluster.wait_for_steps(3, after=at)
    assert frozen <= {s.pid for s in grown if s.round == grown[-1].round}, "in their processes"


@pytest.mark.slow
def test_nobody_works_in_the_old_world_beside_the_new_one(cluster: LocalCluster, start: Start) -> None:
    old_and_new_do_not_meet(cluster, start, "--rdzv_conf=keep_alive_interval=0.5,keep_alive_max_attempt=4", None)


@pytest.mark.slow
@pytest.mark.etcd
def test_with_etcd_nobody_does_either(cluster: LocalCluster, start: Start, etcd: LocalEtcd) -> None:
    lease = "--rdzv_conf=lease_ttl=2,keep_alive_interval=0.5"
    old_and_new_do_not_meet(cluster, start, lease, ("etcd3", etcd.endpoint))
