"""Somebody changes the keys of a running job in etcd."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest

from local_cluster import LocalCluster, Node
from local_etcd import LocalEtcd

pytestmark = [pytest.mark.processes, pytest.mark.etcd, pytest.mark.slow]

LEASE_S = 6


def all_step_after(cluster: LocalCluster, round_: int) -> bool:
    return len({step.pid for step in cluster.steps() if step.round > round_ and step.world_size == 3}) == 3


def test_a_node_whose_key_is_removed_comes_back_within_a_renewal(
    cluster: LocalCluster, start: Callable[..., Node], etcd: LocalEtcd
) -> None:
    settings = (f"--rdzv_conf=lease_ttl={LEASE_S}",)
    backend = ("etcd3", etcd.endpoint)
    nodes = [
        start(name, "count.py", "100000", "0.01", backend=backend, job="robbed", nproc=1, flags=settings)
        for name in "abc"
    ]
    cluster.wait_for_steps(3)
    for name in ("members/foo", "members/\udcff", "record/xyz"):
        etcd.ctl("put", f"softrun/robbed/{name}", "x")
        etcd.ctl("del", f"softrun/robbed/{name}")
    for key in etcd.ctl("get", "softrun/robbed/members/", "--prefix", "--keys-only").split():
        last = cluster.steps()[-1].round
        etcd.ctl("del", key)
        at = time.monotonic()
        cluster.wait_for("the next world of all", partial(all_step_after, cluster, last))
        assert time.monotonic() - at < LEASE_S
    for node in nodes:
        assert node.process.poll() is None
        assert "are passed over" in node.output()
