"""Measures softrun's wrapper beside nvidia-resiliency-ext's, and what it costs. A part of scripts/bench.

Four ranks of one machine step together over gloo; then one of them, not the first, gets a fault. Timed is how long it
takes until every survivor has completed a step of a later world: after an exception all ranks are survivors, else the
others. The systems take turns, so that the machine's noise falls on all. See bench_nvrx.py for the other wrapper.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bench_nvrx
import peers
from bench_nvrx import RANKS, VICTIM
from measuring import Record, cluster, spread
from one_node import first_of_a_new_process, inject, start_ranks

from local_cluster import recovery

TRAINERS = Path(__file__).parent / "trainers"
SOFT_TIMEOUT_S = 2.0
HANG_TARGET_S = SOFT_TIMEOUT_S + 0.2
COST_TARGET = 0.005  # of a step
SOFTRUN_WAIT_S = 30.0
EXCEPTION, KILL, STOP, SLEEP = "exception", "kill", "stop", "sleep"
BY_TIMEOUT = (STOP, SLEEP)
"""Faults that only a timeout finds."""


@dataclass(frozen=True)
class Row:
    """A line of the table: one of the figures that are taken of a fault."""

    title: str
    fault: str
    figure: str
    target_s: float | None = None
    beside: str | None = None
    """The figure that is told along."""

    def told_along(self) -> Row:
        return replace(self, figure=self.beside or self.figure)


ROWS = (
    Row("exception on one rank → all ranks' next step", EXCEPTION, "next_step_s", 0.1),
    Row("SIGKILL of one rank → the survivors' next step", KILL, "next_step_s", 0.1),
    Row("   → the replacement's next step", KILL, "replacement_s", None, "import_s"),
    Row(f"SIGSTOP of one rank, T = {SOFT_TIMEOUT_S:g} s → the others' next step", STOP, "next_step_s"),
    Row("   PAUSE → the others' next step", STOP, "after_pause_s", 0.05),
    Row(f"hang of one rank, T = {SOFT_TIMEOUT_S:g} s → the others' next step", SLEEP, "next_step_s", HANG_TARGET_S),
    Row("   → the hung one's", SLEEP, "victim_s", HANG_TARGET_S),
)

PEERS = {"fastest": bench_nvrx.FAULTS, "matched": BY_TIMEOUT, "default": bench_nvrx.FAULTS}
"""The settings of nvidia-resiliency-ext that are measured, and for which faults; see its trainer."""
PEER_WAIT_S = 15.0
STARTS = 3  # with the fastest settings it may report a fault that does not exist, before it has begun
DEFAULT_WAIT_S, QUICK_WAIT_S = 95.0, 12.0  # it ends ranks after 90 s


def inprocess(args: argparse.Namespace) -> Iterator[Record]:
    results: list[Record] = []
    for record in faults(1 if args.quick else args.repeat, quick=args.quick):
        results.append(record)
        print(f"  {told(record)}", flush=True)
        yield record
    print_table(results)
    record = cost(15.0 if args.quick else 45.0)
    tell_cost(record)
    yield record


def faults(repeat: int, *, quick: bool) -> Iterator[Record]:
    there = is_there()
    for _ in range(repeat):
        for fault in (EXCEPTION, KILL, STOP, SLEEP):
            yield {"system": "softrun", "fault": fault, **softrun_fault(fault)}
            for settings in ("fastest", "matched") if there else ():
                if fault in PEERS[settings]:
                    yield peer_fault(fault, settings, PEER_WAIT_S)
    if there:
        # Once, and two at a time: each waits for more than a minute in which nothing is done.
        with ThreadPoolExecutor(2) as pool:
            wait_s = QUICK_WAIT_S if quick else DEFAULT_WAIT_S
            yield from pool.map(lambda fault: peer_fault(fault, "default", wait_s), PEERS["default"])


def peer_fault(fault: str, settings: str, wait_s: float) -> Record:
    for _ in range(STARTS):
        result = bench_nvrx.measure(fault, settings, wait_s)
        if result["fault_at"] is not None:
            break
    return {"system": f"nvrx {settings}", "fault": fault, "waited_s": wait_s, **result}


def is_there() -> bool:
    try:
        peers.python_of("nvrx")
    except peers.UnavailableError as why:
        print(f"  without nvidia-resiliency-ext, which cannot be had here: {why}")
        return False
    return True


# --- softrun's wrapper


def softrun_fault(fault: str) -> Record:
    """`next_step_s` and what else ROWS has of this fault; what did not happen within SOFTRUN_WAIT_S is not in it."""
    with cluster() as here:
        timeout = [f"{SOFT_TIMEOUT_S:g}"] if fault in BY_TIMEOUT else []
        start_ranks(here, TRAINERS / "bench_wrapper.py", RANKS, [str(here.directory), *timeout])
        steps = here.wait_for_steps(RANKS, each=20, timeout_s=120)
        victim = next(s.pid for s in reversed(steps) if s.rank == VICTIM)
        others = {s.pid for s in steps} - {victim}
        before = max(s.round for s in steps)
        at = inject(here, victim, VICTIM, fault)
        record: Record = {"fault_at": at, "waited_s": SOFTRUN_WAIT_S}
        try:
            survivors = others | {victim} if fault == EXCEPTION else others
            record["next_step_s"] = here.wait_for(
                "recovery", lambda: recovery(here.steps(), at, survivors), SOFTRUN_WAIT_S
            )
            if fault == SLEEP:
                record["victim_s"] = here.wait_for(
                    "the hung rank", lambda: recovery(here.steps(), at, {victim}), SOFTRUN_WAIT_S
                )
            if fault == KILL:
                first = here.wait_for(
                    "the replacement", lambda: first_of_a_new_process(here.steps(), others | {victim}), SOFTRUN_WAIT_S
                )
                record["replacement_s"] = first.mono - at
                record["import_s"] = import_s(here.directory, first.pid)
            if fault == STOP:
                record["after_pause_s"] = at + record["next_step_s"] - paused_at(here.directory)  # type: ignore[operator]
        except TimeoutError as late:
            record["note"] = str(late)
        record["rounds"] = max(s.round for s in here.steps()) - before
        return record


def import_s(directory: Path, pid: int) -> float:
    """From the start of a worker's process until it had imported what it needs."""
    imported_at = float((directory / f"imported-{pid}").read_text())
    started_at = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return imported_at - started_at


def paused_at(directory: Path) -> float:
    """When the first PAUSE was given, by the monotonic clock."""
    first_ms = min(int(line) for line in (directory / "pauses").read_text().split())
    return first_ms / 1000 - (time.time() - time.monotonic())


# --- telling


def told(record: Record) -> str:
    figures = [
        f"{name.removesuffix('_s').replace('_', ' ')} {value * 1000:.0f} ms"
        for name, value in record.items()
        if name.endswith("_s") and name != "waited_s" and isinstance(value, float)
    ]
    note = str(record.get("note") or "").partition("\n")[0]
    return f"{record['system']:13} {record['fault']:10} {', '.join(figures) or 'never'}{note and f'  ({note})'}"


def print_table(results: Sequence[Record]) -> None:
    print(f"\n  {'fault → next step, medians in ms':57} {'':>24}   of  target")
    for row in ROWS:
        own = values(results, "softrun", row)
        target = "" if row.target_s is None else f"≤ {row.target_s * 1000:.0f}"
        print(f"  {row.title:57} {figures(results, 'softrun', row)}  {target}{row_verdict(row, own)}".rstrip())
        if row.beside:
            print(f"  {'      of which its own start and imports':57} {figures(results, 'softrun', row.told_along())}")
        for settings in PEERS:
            system = f"nvrx {settings}"
            if row.figure == "next_step_s" and any((r["system"], r["fault"]) == (system, row.fault) for r in results):
                theirs = values(results, system, row)
                ratio = f"  {statistics.median(theirs) / statistics.median(own):.1f} times" if own and theirs else ""
                print(f"     {system:54} {figures(results, system, row)}{ratio}")


def values(results: Sequence[Record], system: str, row: Row) -> list[float]:
    taken = [r.get(row.figure) for r in results if (r["system"], r["fault"]) == (system, row.fault)]
    return [value for value in taken if isinstance(value, float)]


def figures(results: Sequence[Record], system: str, row: Row) -> str:
    """The median, the spread, and how many of how many it is of."""
    tried = [r for r in results if (r["system"], r["fault"]) == (system, row.fault)]
    taken = values(results, system, row)
    shown = f"never within {tried[0]['waited_s']:g} s"
    if taken:
        shown = f"{statistics.median(taken) * 1000:.0f} [{spread(taken)}]"
    return f"{shown:>24} {len(taken):2}/{len(tried)}"


def row_verdict(row: Row, own: Sequence[float]) -> str:
    return "" if row.target_s is None else kept(bool(own) and statistics.median(own) <= row.target_s)


def kept(is_kept: bool) -> str:
    return "  kept" if is_kept else "  MISSED"


# --- what the monitoring costs


def cost(seconds: float) -> Record:
    """A process group of as many ranks as there are cores for; see the trainer."""
    ranks = min(RANKS, len(os.sched_getaffinity(0)))
    with cluster() as here:
        result = here.directory / "cost.json"
        node = start_ranks(here, TRAINERS / "bench_cost.py", ranks, [str(seconds), str(result)])
        here.wait_for("the cost", lambda: result.exists() and node.process.poll() is not None, 120 + 4 * seconds)
        found = json.loads(result.read_text())
    return {"system": "softrun", "ranks": ranks, **found}


def tell_cost(found: dict[str, Any]) -> None:
    threads, calls, calls_s = found["threads_share"], found["calls_share"], found["calls_s"]
    effect, noise = found["with_over_without"], found["alike_over_alike"]
    step_ms = found["step_s"] * 1000
    print(f"\n  all monitoring, a step of 5 ms of work, here {step_ms:.1f} ms, {found['ranks']} ranks")
    verdict = f"target < {COST_TARGET:.1%}{kept(threads + calls < COST_TARGET)}"
    parts = f"its threads {threads:.3%}, a ping and a check of {calls_s * 1e6:.1f} µs {calls:.3%}"
    print(f"     its processor time: {threads + calls:.3%}, {verdict} ({parts})")
    print(f"     steps with it over steps without, in turns: {shares(effect)}")
    print(f"     the same between neighbours that are alike: {shares(noise)}")
    if quartile_distance(noise) > COST_TARGET:
        print("     the clock's noise is larger than the target here: go by the processor time")


def shares(values: Sequence[float]) -> str:
    return f"median {statistics.median(values):+.2%} [{min(values):+.2%} to {max(values):+.2%}], n {len(values)}"


def quartile_distance(values: Sequence[float]) -> float:
    first, _, third = statistics.quantiles(values, n=4)
    return third - first
