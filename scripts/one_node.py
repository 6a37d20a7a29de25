"""softrun with several ranks on this machine, and a fault that befalls one of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL, SIGSTOP

from local_cluster import LocalCluster, Node, Step, send, softrun_command


def start_ranks(
    here: LocalCluster, trainer: Path, ranks: int, args: Sequence[str], preload: Sequence[str] = ()
) -> Node:
    """A node that replaces whoever is lost. Its workers need not import what is in `preload`."""
    flags = ("--restart_policy=soft", "--standalone", f"--nproc_per_node={ranks}", f"--preload={','.join(preload)}")
    replace = ("--worker_failure=replace", "--max_restarts=1000")
    return here.start("node", softrun_command(*flags, *replace, script=trainer, args=args))


def inject(here: LocalCluster, pid: int, rank: int, fault: str) -> float:
    """Let `kill`, `stop`, or what trainers/ordered_fault.py knows befall this rank, which is process `pid`; returns
    when, by the monotonic clock."""
    if fault in ("kill", "stop"):
        now = time.monotonic()
        send(pid, SIGKILL if fault == "kill" else SIGSTOP)
        return now
    at = here.directory / "fault-at"
    at.unlink(missing_ok=True)
    order = here.directory / "order"
    order.write_text(fault)
    order.rename(here.directory / f"fault-{rank}")
    here.wait_for("the fault", at.exists, 10)
    return float(at.read_text())


def first_of_a_new_process(steps: Sequence[Step], known: set[int]) -> Step | None:
    return next((s for s in steps if s.pid not in known), None)
