"""What the loss of a host costs a job, again and again: how soon the survivors step, and who fails.

The first host is the node that has been in the job for longest: it leads, listens at the endpoint, and hosts the
workers' store. `--what`, with the embedded store unless `--etcd` is given:

- alone, joining, two, within: SIGKILL to the first host alone; while a node joins; together with another; or at a
  random moment of a change that another kill has begun. Each time a replacement starts under its name, and all are in
  one world before the next kill, so every node is the first host in its turn. Late: a kill after which a survivor made
  no step within 1 s.
- silent: the hosts are network namespaces, and one is cut off, in half of the runs the first. Late: after 2 s. It is
  healed 3 s after the cut at the earliest, and comes back before the next one. Needs root, iproute2 and /dev/net/tun.
- busy: nobody is lost, but for some time two loops for each core take all there is. How often the world changed.

Lost: a survivor that did not keep its process. Exits with 1 if any was late or lost, or a world changed for no reason.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from local_network import NEEDS, LocalNetwork, able
from measuring import cluster

from bench_suite.figures import gap, members
from bench_suite.job import TRAINERS, Job, Shape, Work
from bench_suite.softrun_job import SoftrunJob
from bench_suite.torchrun_job import launcher_flags
from local_cluster import LocalCluster, alive, end_in_order_on_sigterm, softrun_command
from local_etcd import LocalEtcd

KILLS = {"alone": 0, "joining": 0, "two": 1, "within": 1}
"""How many more than the first host are killed."""
QUICK_S = 0.08  # what a loss is to cost at most
LATE_S = 1.0
LATE_SILENT_S = 2.0
CUT_S = 3.0
"""A host that is back sooner was late rather than lost, and makes the others more patient for the next time."""
PATIENCE_S = 60.0
CHANGE_S = 0.08
"""A change takes about so long: the second kill comes at a random moment of it."""
OWN = "own"


@dataclass
class Outcome:
    late_s: float
    gaps: list[float] = field(default_factory=list)
    lost: int = 0

    @property
    def late(self) -> int:
        return sum(each > self.late_s for each in self.gaps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="or cuts")
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 2])
    parser.add_argument("--workers", type=int, default=2, help="of each node")
    parser.add_argument("--what", nargs="+", default=["alone"], choices=[*KILLS, "silent", "busy"])
    parser.add_argument("--etcd", nargs="?", const=OWN, help="the endpoint of an etcd; without one, one is started")
    parser.add_argument("--seconds", type=float, default=600.0, help="of busy")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if "silent" in args.what and not able():
        parser.error(f"silent needs {NEEDS}")
    if "silent" in args.what and args.etcd not in (None, OWN):
        parser.error("silent starts its own etcd, on a host of its own: give --etcd without an endpoint")
    end_in_order_on_sigterm()
    draw = random.Random(args.seed)
    wrong = 0
    for what in args.what:
        for nodes in args.nodes:
            shape = Shape(nodes, args.workers)
            if what == "busy":
                with an_etcd(args.etcd) as etcd:
                    wrong += busy(shape, args.seconds, etcd)
            elif what == "silent":
                outcomes = cuts(shape, args.kills, draw, bool(args.etcd))
                wrong += sum(told(f"{what}, {whom}", shape, each) for whom, each in outcomes.items())
            else:
                with an_etcd(args.etcd) as etcd:
                    wrong += told(what, shape, kills(what, shape, args.kills, draw, etcd))
    return 1 if wrong else 0


def told(what: str, shape: Shape, outcome: Outcome) -> int:
    gaps = sorted(outcome.gaps)
    if not gaps:
        return 0
    print(
        f"{what}, {shape.nodes} x {shape.workers}, {len(gaps)} times: {outcome.late} late, {outcome.lost} lost; "
        f"gap median {statistics.median(gaps) * 1000:.0f} ms, 9 of 10 within "
        f"{gaps[len(gaps) * 9 // 10] * 1000:.0f} ms, {sum(gap <= QUICK_S for gap in gaps)} within "
        f"{QUICK_S * 1000:.0f} ms, most {gaps[-1] * 1000:.0f} ms",
        flush=True,
    )
    return outcome.late + outcome.lost


@contextmanager
def an_etcd(wanted: str | None) -> Iterator[str | None]:
    """Its endpoint, if one is wanted."""
    if wanted != OWN:
        yield wanted
        return
    with tempfile.TemporaryDirectory(prefix="softrun-etcd-") as directory, LocalEtcd(Path(directory)) as etcd:
        yield etcd.endpoint


def kills(what: str, shape: Shape, count: int, draw: random.Random, etcd: str | None) -> Outcome:
    """One job. Its nodes are numbered in the order in which they came."""
    outcome = Outcome(LATE_S)
    extra = KILLS[what]
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
            took = job.next_step(partial(gap_now, here, at, len(staying)), PATIENCE_S)
            outcome.gaps.append(took)
            while len(job.nodes) < shape.nodes:
                job.start_node(max(job.nodes) + 1)
            job.wait_for_steps(shape.all, time.monotonic(), PATIENCE_S)
            outcome.lost += sum(not alive(pid) for pid in staying)
    return outcome


class JobOfHosts(Job):
    """softrun with its default settings, each node on a host of its own."""

    def __init__(self, here: LocalCluster, shape: Shape, network: LocalNetwork, etcd: str | None) -> None:
        super().__init__(here, shape, Work())
        self._network = network
        first, *_ = [network.add(str(number)) for number in range(shape.nodes)]
        self._store = ("etcd3", etcd) if etcd else ("c10d", f"{first}:29400")

    def command(self, number: int) -> tuple[list[str], dict[str, str]]:
        flags = ["--restart_policy=soft", "--worker_failure=replace", *launcher_flags(self.shape, *self._store)]
        args = [self.work.kind, str(self.work.step_s)]
        command = softrun_command(*flags, script=TRAINERS / "bench_soft.py", args=args)
        # gloo takes the address that the name of this machine has, unless it is told the interface.
        return [*self._network.on(str(number)), *command], {"GLOO_SOCKET_IFNAME": "eth0"}

    def by_age(self) -> list[int]:
        """The nodes in the order of the record."""
        steps = self.here.steps()
        last = max(s.round for s in steps)
        rank = {s.pid: s.rank for s in steps if s.round == last}
        return sorted(self.nodes, key=lambda number: min(rank[p] for p in self.nodes[number].family() if p in rank))


@contextmanager
def etcd_on_a_host(network: LocalNetwork, wanted: bool) -> Iterator[str | None]:
    """Its endpoint, if one is wanted."""
    if not wanted:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="softrun-etcd-") as directory:
        address = network.add("etcd")
        with LocalEtcd(Path(directory), host=address, prefix=network.on("etcd")) as etcd:
            yield etcd.endpoint


def cuts(shape: Shape, count: int, draw: random.Random, etcd: bool) -> dict[str, Outcome]:
    """One job, whose hosts stay the same. By who was cut off."""
    outcomes = {"the first": Outcome(LATE_SILENT_S), "another": Outcome(LATE_SILENT_S)}
    with LocalNetwork() as network, cluster() as here, etcd_on_a_host(network, etcd) as endpoint:
        job = JobOfHosts(here, shape, network, endpoint)
        job.start(shape.nodes)
        everybody = members(here.steps())
        for run in range(count):
            outcome = list(outcomes.values())[run % 2]
            time.sleep(draw.random() * 0.25)  # at any moment between two beats
            first, *others = job.by_age()
            victim = draw.choice(others) if run % 2 else first
            staying = everybody - set(job.nodes[victim].family())
            at = network.cut(str(victim))
            took = job.next_step(partial(gap_now, here, at, len(staying)), PATIENCE_S)
            outcome.gaps.append(took)
            time.sleep(max(0.0, at + CUT_S - time.monotonic()))
            at = network.heal()
            job.wait_for_steps(shape.all, at, PATIENCE_S)
            outcome.lost += len(everybody - members(here.steps()))
            everybody = members(here.steps())
    return outcomes


def busy(shape: Shape, seconds: float, etcd: str | None) -> int:
    """Returns how often the world changed."""
    with cluster() as here:
        job = SoftrunJob(here, shape, Work(), replace=True, etcd=etcd)
        job.start(shape.nodes)
        first = max(s.round for s in here.steps())
        began = time.monotonic()
        with loops(2 * (os.cpu_count() or 1)):
            time.sleep(seconds)
            steps = here.steps()
        changes = len({s.round for s in steps if s.round > first})
        times = [[s.mono for s in steps if s.pid == pid and s.mono > began] for pid in members(steps)]
        longest = max(b - a for own in times for a, b in pairwise(own))
    print(
        f"busy, {shape.nodes} x {shape.workers}, {seconds:.0f} s: the world changed {changes} times; "
        f"longest time between two steps {longest * 1000:.0f} ms",
        flush=True,
    )
    return changes


@contextmanager
def loops(count: int) -> Iterator[None]:
    """So many processes that take what processor time they get."""
    # A session for each, since many kernels share the processors out between sessions.
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def gap_now(here: LocalCluster, at: float, workers: int) -> float | None:
    return gap(here.steps(), at, workers)


if __name__ == "__main__":
    sys.exit(main())
