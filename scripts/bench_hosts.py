"""SIGKILLs the first host of a job on the embedded store, again and again: how soon the survivors step, and who fails.

The first host is the node that has been in the job for longest: it leads, listens at the endpoint, and hosts the
workers' store. Each time a replacement starts under its name, and all are in one world before the next kill, so every
node is the first host in its turn. `--what`: kill it alone; while a node joins; together with another; or at a random
moment of a change that another kill has begun. Late: a kill after which a survivor made no step within a second. Lost:
a survivor that did not keep its process. Exits with 1 if there is either.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from functools import partial

from measuring import cluster

from bench_suite.figures import gap, members
from bench_suite.job import Shape, Work
from bench_suite.softrun_job import SoftrunJob
from local_cluster import LocalCluster, alive, end_in_order_on_sigterm

LATE_S = 1.0
PATIENCE_S = 60.0
CHANGE_S = 0.08
"""A change takes about so long: the second kill comes at a random moment of it."""


@dataclass
class Outcome:
    gaps: list[float] = field(default_factory=list)
    late: int = 0
    lost: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 2])
    parser.add_argument("--workers", type=int, default=2, help="of each node")
    parser.add_argument("--what", nargs="+", default=["alone"], choices=["alone", "joining", "two", "within"])
    parser.add_argument("--etcd", help="the endpoint of an etcd, instead of the embedded store")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    end_in_order_on_sigterm()
    draw = random.Random(args.seed)
    wrong = 0
    for what in args.what:
        for nodes in args.nodes:
            outcome = kills(what, Shape(nodes, args.workers), args.kills, draw, args.etcd)
            wrong += outcome.late + outcome.lost
            gaps = sorted(outcome.gaps)
            print(
                f"{what}, {nodes} x {args.workers}, {len(gaps)} times: {outcome.late} late, {outcome.lost} lost; "
                f"gap median {statistics.median(gaps) * 1000:.0f} ms, 9 of 10 within "
                f"{gaps[len(gaps) * 9 // 10] * 1000:.0f} ms, most {gaps[-1] * 1000:.0f} ms",
                flush=True,
            )
    return 1 if wrong else 0


def kills(what: str, shape: Shape, count: int, draw: random.Random, etcd: str | None) -> Outcome:
    """One job. Its nodes are numbered in the order in which they came."""
    outcome = Outcome()
    extra = {"alone": 0, "joining": 0, "two": 1, "within": 1}[what]
    shape = Shape(shape.nodes + extra, shape.workers)
    with cluster() as here:
        job = SoftrunJob(here, shape, Work(), replace=True, etcd=etcd)
        job.start(shape.nodes)
        for _ in range(count):
            time.sleep(draw.random() * 0.05)
            oldest = min(job.nodes)
            if what == "joining":
                job.start_node(max(job.nodes) + 1)
                time.sleep(1.0 + draw.random())  # Python starts, then it joins
            victims = [oldest, *sorted(job.nodes)[1 : 1 + extra]]
            families = {pid for number in victims for pid in job.nodes[number].family()}
            staying = members(here.steps()) - families
            at = job.nodes[oldest].kill()
            for number in victims[1:]:
                if what == "within":
                    time.sleep(draw.random() * CHANGE_S)
                at = job.nodes[number].kill()
            for number in victims:
                del job.nodes[number]
            took = job.wait_for("a step of the survivors", partial(gap_now, here, at, len(staying)), PATIENCE_S)
            outcome.gaps.append(took)
            outcome.late += took > LATE_S
            while len(job.nodes) < shape.nodes:
                job.start_node(max(job.nodes) + 1)
            job.wait_for_steps(shape.all, time.monotonic(), PATIENCE_S)
            outcome.lost += sum(not alive(pid) for pid in staying)
    return outcome


def gap_now(here: LocalCluster, at: float, workers: int) -> float | None:
    return gap(here.steps(), at, workers)


if __name__ == "__main__":
    sys.exit(main())
