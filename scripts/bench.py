"""What `scripts/bench` runs: softrun beside torchrun, in one run on one machine, so that the ratios mean something.

The definition of a gap, for both: from the instant of the fault until every worker of a later world, in which all
survivors are, has completed its first step. torchrun runs with the fastest settings that work, and with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which its restarted workers often read stale addresses and never step.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from bench_inprocess import inprocess
from bench_many_nodes import many_nodes
from measuring import Record, cluster, spread

from local_cluster import (
    LocalCluster,
    Node,
    Step,
    end_in_order_on_sigterm,
    free_port,
    listens,
    recovery,
    softrun_command,
)
from local_etcd import LocalEtcd

HERE = Path(__file__).parent
TRAINERS = HERE.parent / "tests" / "processes" / "trainers"
NODES, WORKERS_PER_NODE = 3, 2
ENDLESS = "1000000"
TORCHRUN_FASTEST = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("measures", nargs="*", choices=[[], *MEASURES], help="all of them, where none is named")
    parser.add_argument("--repeat", type=int, default=5, help="faults of a kind and a system in comparisons")
    parser.add_argument("--kills", type=int, default=100, help="kills in the count of survivors")
    parser.add_argument("--quick", action="store_true", help="each fault of inprocess once, with short waits")
    parser.add_argument(
        "--records", "--json", type=Path, default=Path("bench-results/records.jsonl"), help="raw results, lines of JSON"
    )
    args = parser.parse_args()
    end_in_order_on_sigterm()
    args.records.parent.mkdir(parents=True, exist_ok=True)
    for name in args.measures or MEASURES:
        print(f"\n{name}", flush=True)
        for record in MEASURES[name](args):
            with args.records.open("a") as file:
                print(json.dumps({"measure": name, "at": time.time(), **record}), file=file)
    return 0


# --- a node is killed


def node_kill(args: argparse.Namespace) -> Iterator[Record]:
    gaps: dict[str, list[float]] = {"softrun": [], "torchrun": []}
    for _ in range(args.repeat):
        for system in gaps:  # alternating, so that the machine's noise falls on both
            gap = one_node_kill(system)
            gaps[system].append(gap)
            print(f"  {system:10} {gap * 1000:9.0f} ms", flush=True)
            yield {"system": system, "gap_s": gap}
    soft, torch = (statistics.median(gaps[system]) for system in ("softrun", "torchrun"))
    print(f"  node SIGKILL → first step of all survivors, median of {args.repeat}:")
    for system, median in (("softrun", soft), ("torchrun", torch)):
        print(f"  {system:10} {median * 1000:9.0f} ms [{spread(gaps[system])}]")
    print(f"  ratio      {torch / soft:9.0f}")


def one_node_kill(system: str) -> float:
    with cluster() as here:
        nodes = start_nodes(here, system)
        here.wait_for_steps(NODES * WORKERS_PER_NODE, each=20, timeout_s=120)
        survivors = (NODES - 1) * WORKERS_PER_NODE
        killed_at = nodes[-1].kill()
        return here.wait_for("recovery", lambda: first_step_of_all(here.steps(), killed_at, survivors), 120)


def first_step_of_all(steps: Sequence[Step], at: float, workers: int) -> float | None:
    firsts: dict[int, float] = {}
    for s in steps:
        if s.mono > at and s.world_size == workers:
            firsts.setdefault(s.rank, s.mono)
    return max(firsts.values()) - at if len(firsts) == workers else None


# --- the same on etcd, where any node may die


def etcd_kill(args: argparse.Namespace) -> Iterator[Record]:
    """Nodes are killed in turn, the first included; each is replaced before the next one is."""
    gaps = []
    with etcd() as server, cluster() as here:
        backend = ("etcd3", server.endpoint)
        nodes = [start_node(here, "softrun", f"node-{i}", backend=backend) for i in range(NODES)]
        steps = here.wait_for_steps(NODES * WORKERS_PER_NODE, each=20, timeout_s=120)
        for kill in range(max(args.repeat, NODES)):
            gaps.append(kill_and_wait(here, nodes.pop(0), steps))
            nodes.append(start_node(here, "softrun", f"replacement-{kill}", backend=backend))
            steps = here.wait_for_steps(NODES * WORKERS_PER_NODE, after=time.monotonic(), timeout_s=120)
            yield {"gap_s": gaps[-1]}
    print(
        f"  node SIGKILL, the first included → first step of all survivors: median "
        f"{statistics.median(gaps) * 1000:.0f} ms [{spread(gaps)}] of {len(gaps)}"
    )


def etcd_leader(args: argparse.Namespace) -> Iterator[Record]:
    """A node and etcd's leader are killed at once."""
    gaps, lost = [], 0
    for _ in range(args.repeat):
        with etcd(3) as server, cluster() as here:
            backend = ("etcd3", server.endpoint)
            nodes = [start_node(here, "softrun", f"node-{i}", backend=backend) for i in range(NODES)]
            steps = here.wait_for_steps(NODES * WORKERS_PER_NODE, each=20, timeout_s=120)
            leader = server.leader()
            server.kill(leader)
            gaps.append(kill_and_wait(here, nodes.pop(0), steps))
            lost = max(lost, repeated_steps(here.steps()))
            yield {"gap_s": gaps[-1]}
    print(
        f"  the same while etcd changes its leader: median {statistics.median(gaps) * 1000:.0f} ms [{spread(gaps)}] of "
        f"{len(gaps)}; at most {lost} steps repeated by a survivor"
    )


def etcd_away(_args: argparse.Namespace) -> Iterator[Record]:
    with etcd() as server, cluster() as here:
        for i in range(NODES):
            start_node(here, "softrun", f"node-{i}", backend=("etcd3", server.endpoint))
        before = newest(here.wait_for_steps(NODES * WORKERS_PER_NODE, each=20, timeout_s=120))
        at = time.monotonic()
        server.kill(0)
        time.sleep(10)
        server.start_again(0)
        server.wait_until_healthy()
        here.wait_for_steps(NODES * WORKERS_PER_NODE, after=time.monotonic())
        seen = [s for s in here.steps() if s.mono > at]
        longest = max(b.mono - a.mono for pid in before for a, b in pairwise([s for s in seen if s.pid == pid]))
        yield {"lost": repeated_steps(seen), "rounds": len({s.round for s in seen}), "longest_step_s": longest}
        print(
            f"  etcd away for 10 s: {repeated_steps(seen)} steps lost, {len({s.round for s in seen})} world, longest "
            f"step {longest * 1000:.0f} ms, processes the same: {newest(seen) == before}"
        )


def etcd_joins(_args: argparse.Namespace) -> Iterator[Record]:
    from light_agents import count_calls, end_all, join_all
    from softrun.agent.etcd_client import EtcdAccess, EtcdClient
    from softrun.agent.store_etcd import EtcdStore

    logging.getLogger("softrun").setLevel(logging.ERROR)
    calls = count_calls(EtcdClient)
    with etcd() as server:
        access = EtcdAccess((server.endpoint,))
        for nodes in (8, 8, 16, 32, 64, 128):  # the first one loads what all need
            before = calls()
            agents, seconds = join_all(
                nodes, lambda node, job=f"{nodes}-{before}": EtcdStore(job, node, access, 15, 30)
            )  # type: ignore[misc]
            asked = calls() - before
            end_all(agents)
            yield {"nodes": nodes, "seconds": seconds, "calls": asked}
            print(f"  {nodes:4} agents join in {seconds:.2f} s with {asked / nodes:.1f} calls of etcd each")


def kill_and_wait(here: LocalCluster, victim: Node, steps: list[Step]) -> float:
    staying = newest(steps) - set(victim.family())
    killed_at = victim.kill()
    return here.wait_for("recovery", lambda: recovery(here.steps(), killed_at, staying), 120)


def repeated_steps(steps: Sequence[Step]) -> int:
    """The most steps that any process had to do again."""
    most = 0
    for pid in {s.pid for s in steps}:
        own = [s.step for s in steps if s.pid == pid]
        most = max(most, *(before - after + 1 for before, after in pairwise(own)), 0)
    return most


# --- survivors keep their processes


def survivors(args: argparse.Namespace) -> Iterator[Record]:
    kept, gaps = 0, []
    with cluster() as here:
        port = free_port()
        nodes = start_nodes(here, "softrun", port)
        steps = here.wait_for_steps(NODES * WORKERS_PER_NODE, timeout_s=120)
        for kill in range(args.kills):
            before = newest(steps)
            victim = nodes.pop(1)  # the oldest but the host of the store
            staying = before - set(victim.family())
            killed_at = victim.kill()
            gap = here.wait_for("recovery", lambda at=killed_at, pids=staying: recovery(here.steps(), at, pids))  # type: ignore[misc]
            nodes.append(start_node(here, "softrun", f"replacement-{kill}", port))
            steps = here.wait_for_steps(NODES * WORKERS_PER_NODE, after=time.monotonic(), timeout_s=120)
            kept += staying < newest(steps)
            gaps.append(gap)
            yield {"gap_s": gap, "kept": staying < newest(steps)}
    print(
        f"  survivors' process ids unchanged in {kept} of {args.kills} kills; gap median "
        f"{statistics.median(gaps) * 1000:.0f} ms [{spread(gaps)}]"
    )


# --- from the agent's decision to the worker's callback


CALLBACK = """
import sys, time, softrun
softrun.on_world_change(lambda event: print(time.monotonic(), flush=True))
print("ready", flush=True)
sys.stdin.read()
"""


def callback(_args: argparse.Namespace) -> Iterator[Record]:
    from softrun.runtime.channel import ENVIRONMENT_VARIABLE, EventWriter
    from softrun.runtime.events import WorkerEvent, WorkerInfo, WorkerState

    info = WorkerInfo(
        local_rank=0, role_rank=0, rank=0, local_world_size=1, role_world_size=1, world_size=1,
        master_addr="127.0.0.1", master_port=1,
    )  # fmt: skip
    delays = []
    with tempfile.TemporaryDirectory() as directory:
        writer = EventWriter.create(Path(directory) / "channel")
        event = WorkerEvent(timestamp=0, worker_info=info, worker_state=WorkerState.HEALTHY, round=1)
        writer.write(event)
        worker = subprocess.Popen(
            [sys.executable, "-c", CALLBACK],
            env={**os.environ, ENVIRONMENT_VARIABLE: str(writer.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if worker.stdout is None or worker.stdin is None:
            raise AssertionError("asked for pipes")
        worker.stdout.readline()
        for _ in range(300):
            decided_at = time.monotonic()
            writer.write(event)
            delays.append(float(worker.stdout.readline()) - decided_at)
            time.sleep(0.005)
        worker.stdin.close()
        worker.wait()
    for delay in delays:
        yield {"delay_s": delay}
    p99 = statistics.quantiles(delays, n=100)[98]
    print(f"  decision → worker's callback: median {statistics.median(delays) * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms")


# --- an idle agent


def idle(_args: argparse.Namespace) -> Iterator[Record]:
    seconds = 20.0
    shares: dict[str, float] = {}
    memory: dict[str, float] = {}
    with cluster() as here, cluster() as there:
        nodes = {
            "softrun": start_node(here, "softrun", "a", free_port(), trainer="count.py", pause="0.5", nodes=1),
            "torchrun": start_node(there, "torchrun", "a", free_port(), trainer="plain.py", pause="0.5", nodes=1),
        }
        here.wait_for_steps(WORKERS_PER_NODE, timeout_s=60)
        there.wait_for_steps(WORKERS_PER_NODE, timeout_s=60)
        before = {system: cpu_seconds(node.process.pid) for system, node in nodes.items()}
        time.sleep(seconds)
        for system, node in nodes.items():
            shares[system] = (cpu_seconds(node.process.pid) - before[system]) / seconds
            memory[system] = resident_mib(node.process.pid)
            yield {"system": system, "core_share": shares[system], "resident_mib": memory[system]}
    for system in shares:
        print(f"  idle {system:10} {shares[system] * 100:6.2f} % of a core, {memory[system]:6.0f} MiB resident")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


# --- the simulation


def simulation(_args: argparse.Namespace) -> Iterator[Record]:
    began = time.monotonic()
    subprocess.run([str(HERE / "soak"), "--seeds", "0:500", "--jobs", "2"], check=True)
    taken = time.monotonic() - began
    yield {"seeds": 500, "seconds": taken}
    print(f"  500 seeds in {taken:.1f} s on {os.cpu_count()} cores, nothing violated")


MEASURES: dict[str, Callable[[argparse.Namespace], Iterator[Record]]] = {
    "node_kill": node_kill,
    "etcd_kill": etcd_kill,
    "etcd_leader": etcd_leader,
    "etcd_away": etcd_away,
    "etcd_joins": etcd_joins,
    "many_nodes": many_nodes,
    "survivors": survivors,
    "callback": callback,
    "inprocess": inprocess,
    "idle": idle,
    "simulation": simulation,
}


# --- starting things


@contextmanager
def etcd(members: int = 1) -> Iterator[LocalEtcd]:
    with tempfile.TemporaryDirectory(prefix="softrun-etcd-") as directory, LocalEtcd(Path(directory), members) as here:
        yield here


def start_nodes(here: LocalCluster, system: str, port: int | None = None) -> list[Node]:
    port = port or free_port()
    nodes = [start_node(here, system, "node-0", port)]
    here.wait_for("the store listens", lambda: listens(port))
    return nodes + [start_node(here, system, f"node-{i}", port) for i in range(1, NODES)]


def start_node(
    here: LocalCluster,
    system: str,
    name: str,
    port: int = 0,
    trainer: str | None = None,
    pause: str = "0.005",
    nodes: int = NODES,
    backend: tuple[str, str] | None = None,
) -> Node:
    """A launcher whose workers step for ever; each system with the trainer that it is made for."""
    rendezvous, endpoint = backend or ("c10d", f"127.0.0.1:{port}")
    flags = [
        f"--nnodes=1:{nodes}",
        f"--nproc_per_node={WORKERS_PER_NODE}",
        "--max_restarts=1000",
        f"--rdzv_backend={rendezvous}",
        f"--rdzv_endpoint={endpoint}",
        "--rdzv_id=bench",
    ]
    if system == "softrun":
        script = TRAINERS / (trainer or "reduce.py")
        command = softrun_command("--restart_policy=soft", *flags, script=script, args=[ENDLESS, pause])
        return here.start(name, command)
    script = TRAINERS / (trainer or "plain.py")
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--rdzv_conf={TORCHRUN_FASTEST}", *flags,
        str(script), ENDLESS, pause, str(here.directory / "checkpoint"),
    ]  # fmt: skip
    return here.start(name, command, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})


def newest(steps: list[Step]) -> set[int]:
    return {s.pid for s in steps if s.round == steps[-1].round}


if __name__ == "__main__":
    sys.exit(main())
