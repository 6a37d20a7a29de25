"""Measures the in-process wrapper of nvidia-resiliency-ext: from a fault to the next step of every survivor.

Four ranks of one machine step together over gloo; then one of them, not the first, gets a fault. After an `exception`
all are survivors; in a fault that ends the process or that only its end can end (`kill`, `stop`, `sleep`), the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL

import peers
from measuring import given_up
from one_node import inject

from local_cluster import LocalCluster, Node, end_in_order_on_sigterm, free_port, recovery, send

TRAINER = Path(__file__).parent / "trainers" / "bench_nvrx.py"
RANKS, VICTIM = 4, 3  # rank 0 hosts the wrapper's store: without it the job is lost
FAULTS = ("exception", "kill", "stop", "sleep")
SETTINGS = ("default", "guide", "fastest", "steady", "matched")  # see the trainer
START_TIMEOUT_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=FAULTS, required=True)
    parser.add_argument("--settings", choices=SETTINGS, default="fastest")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=150.0, help="how long to wait for the survivors, in seconds")
    args = parser.parse_args()
    end_in_order_on_sigterm()
    gaps = []
    for _ in range(args.repeat):
        try:
            result = measure(args.fault, args.settings, args.timeout)
        except peers.UnavailableError as why:
            print(f"bench_nvrx: {why}", file=sys.stderr)
            return 1
        print(json.dumps(result), flush=True)
        if isinstance(gap := result["next_step_s"], float):
            gaps.append(gap)
    median = f"median {statistics.median(gaps):.3f} s [{min(gaps):.3f} to {max(gaps):.3f}]" if gaps else "never"
    print(f"{args.fault}, {args.settings} settings: {median}, {len(gaps)} of {args.repeat} recovered")
    return 0


def measure(fault: str, settings: str, timeout_s: float) -> dict[str, object]:
    """`fault_at` by the monotonic clock; `next_step_s` from then until every survivor has completed a step of a later
    iteration, None if that was not within `timeout_s`; `note` tells the rest. Raises peers.UnavailableError."""
    python = peers.python_of("nvrx")
    with tempfile.TemporaryDirectory(prefix="softrun-bench-") as directory:
        here = LocalCluster(Path(directory))
        try:
            with here:
                return _measure(here, python, fault, settings, timeout_s)
        finally:
            # Each rank has a monitor process in a session of its own.
            while left := here.orphans():
                for pid in left:
                    send(pid, SIGKILL)


def _measure(here: LocalCluster, python: Path, fault: str, settings: str, timeout_s: float) -> dict[str, object]:
    master_port, store_port = str(free_port()), str(free_port())
    nodes = [
        here.start(
            f"rank-{rank}",
            [str(python), str(TRAINER), settings, str(here.directory), store_port],
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": master_port,
                "TORCH_CPP_LOG_LEVEL": "error",
            },
        )
        for rank in range(RANKS)
    ]
    before = wait_for_start(here, nodes)
    if before is None:
        ends = " | ".join(node.output().strip().rpartition("\n")[2] for node in nodes)
        return {"fault_at": None, "next_step_s": None, "note": f"did not start: {ends}"}
    fault_at = inject(here, nodes[VICTIM].process.pid, VICTIM, fault)
    return wait_for_survivors(here, nodes, fault, fault_at, timeout_s, before)


def wait_for_start(here: LocalCluster, nodes: list[Node]) -> int | None:
    """Until all have made 20 steps in one iteration: its number, or None if that does not happen."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and all(node.process.poll() is None for node in nodes):
        with suppress(TimeoutError):
            return here.wait_for_steps(RANKS, each=20, timeout_s=0.5)[-1].round
    return None


def wait_for_survivors(
    here: LocalCluster, nodes: list[Node], fault: str, fault_at: float, timeout_s: float, before: int
) -> dict[str, object]:
    survivors = {node.process.pid: rank for rank, node in enumerate(nodes) if fault == "exception" or rank != VICTIM}
    lost: dict[int, float] = {}  # survivors that have ended nevertheless, and when
    gap = None
    while (
        not given_up.is_set() and gap is None and len(lost) < len(survivors) and time.monotonic() < fault_at + timeout_s
    ):
        for node in nodes:
            if node.process.poll() is not None and survivors.get(node.process.pid, -1) >= 0:  # reaps the victim, too
                lost.setdefault(survivors[node.process.pid], time.monotonic() - fault_at)
        remaining = {pid for pid, rank in survivors.items() if rank not in lost}
        gap = recovery(here.steps(), fault_at, remaining) if remaining else None
        time.sleep(0.005)
    notes = [f"rank {rank} ended after {at:.1f} s" for rank, at in lost.items()]
    if gap is not None:
        last = here.steps()[-1]
        notes.append(f"iteration {before} -> {last.round}, {last.world_size} ranks")
        if lost:
            notes.append(f"the remaining ones stepped after {gap:.3f} s")
    elif len(lost) == len(survivors):
        notes.append("the job is lost")
    else:
        notes.append(f"no step of all within {timeout_s:g} s")
    return {"fault_at": fault_at, "next_step_s": None if lost else gap, "note": "; ".join(notes)}


if __name__ == "__main__":
    sys.exit(main())
