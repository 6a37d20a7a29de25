"""softrun on etcd, where any node may die, the first included."""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measuring import Record, cluster, spread

from bench_suite.courses import NODES
from bench_suite.faults import BEFORE_S
from bench_suite.figures import around, members, toll
from bench_suite.job import START_TIMEOUT_S, Job, Shape, Work
from bench_suite.softrun_job import SoftrunJob
from local_cluster import recovery
from local_etcd import LocalEtcd

PATIENCE_S = 120.0


def etcd_kill(kills: int) -> Iterator[Record]:
    """Nodes are killed in turn, the first included; each is replaced before the next one is."""
    gaps: list[float] = []
    with etcd() as server, job_on(server) as job:
        job.start(NODES.nodes)
        for kill in range(max(kills, NODES.nodes)):
            gaps.append(kill_and_wait(job, kill)[0])
            job.start_node(NODES.nodes + kill)
            job.wait_for_steps(NODES.all, time.monotonic(), START_TIMEOUT_S)
            yield {"gap_s": gaps[-1]}
    print(
        f"  node SIGKILL, the first included → first step of all survivors: median "
        f"{statistics.median(gaps) * 1000:.0f} ms [{spread(gaps)}] of {len(gaps)}"
    )


def etcd_leader(kills: int) -> Iterator[Record]:
    """A node and etcd's leader are killed at once."""
    gaps: list[float] = []
    repeated = 0
    for _ in range(kills):
        with etcd(3) as server, job_on(server) as job:
            job.start(NODES.nodes)
            server.kill(server.leader())
            gap_s, again = kill_and_wait(job, 0)
            gaps.append(gap_s)
            repeated = max(repeated, again)
            yield {"gap_s": gap_s, "repeated": again}
    print(
        f"  the same while etcd changes its leader: median {statistics.median(gaps) * 1000:.0f} ms [{spread(gaps)}] of "
        f"{len(gaps)}; at most {repeated} steps repeated by a survivor"
    )


def etcd_away() -> Iterator[Record]:
    with etcd() as server, job_on(server) as job:
        job.start(NODES.nodes)
        before = members(job.here.steps())
        at = time.monotonic()
        server.kill(0)
        time.sleep(10)
        server.start_again(0)
        server.wait_until_healthy()
        job.wait_for_steps(NODES.all, time.monotonic(), START_TIMEOUT_S)
        seen = [s for s in job.here.steps() if s.mono > at]
        found = toll(seen, before)
        worlds = len({s.round for s in seen})
        yield {"repeated": found.repeated, "rounds": worlds, "longest_step_s": found.longest_s}
        print(
            f"  etcd away for 10 s: {found.repeated} steps repeated, {worlds} world, longest step "
            f"{found.longest_s * 1000:.0f} ms, processes the same: {found.kept == len(before)}"
        )


def etcd_joins() -> Iterator[Record]:
    from light_agents import count_calls, end_all, join_all
    from softrun.agent.store.etcd import EtcdStore
    from softrun.agent.store.etcd_client import EtcdAccess, EtcdClient

    logging.getLogger("softrun").setLevel(logging.ERROR)
    calls = count_calls(EtcdClient)
    with etcd() as server:
        access = EtcdAccess((server.endpoint,))
        for nodes in (8, 8, 16, 32, 64, 128):  # the first one loads what all need
            before = calls()
            job = f"{nodes}-{before}"
            open_store = partial(EtcdStore, job, access=access, lease_s=15, connect_timeout_s=30)
            agents, seconds = join_all(nodes, open_store)
            asked = calls() - before
            end_all(agents)
            yield {"nodes": nodes, "seconds": seconds, "calls": asked}
            print(f"  {nodes:4} agents join in {seconds:.2f} s with {asked / nodes:.1f} calls of etcd each")


@contextmanager
def etcd(servers: int = 1) -> Iterator[LocalEtcd]:
    with tempfile.TemporaryDirectory(prefix="softrun-etcd-") as directory, LocalEtcd(Path(directory), servers) as here:
        yield here


@contextmanager
def job_on(server: LocalEtcd, shape: Shape = NODES, work: Work | None = None) -> Iterator[Job]:
    with cluster() as here:
        yield SoftrunJob(here, shape, work or Work(), etcd=server.endpoint)


def kill_and_wait(job: Job, number: int) -> tuple[float, int]:
    """Kill this node: the gap, and the most steps that a survivor did again."""
    victim = job.nodes.pop(number)
    staying = members(job.here.steps()) - set(victim.family())
    at = victim.kill()
    gap_s = job.next_step(lambda: recovery(job.here.steps(), at, staying), PATIENCE_S)
    return gap_s, toll(around(job.here.steps(), at, BEFORE_S), staying).repeated
