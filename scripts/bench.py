"""Measures softrun beside other launchers, in one run on one machine, so that the ratios mean something.

All train with the same steps and get the same faults; a gap is from the instant of the fault until every survivor has
completed its next step, in a later world. The systems take turns, so that the machine's noise falls on all. Prints a
table, and what softrun was to reach; writes what was measured as lines of JSON, and a picture. If there is little
time the comparison comes first, and of the systems those without which no ratio can be told.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue

from bench_inprocess import inprocess
from bench_many_nodes import many_nodes
from measuring import Record, given_up

from bench_suite import alone, etcd, records, steady
from bench_suite.courses import course
from bench_suite.job import DidNotHappenError
from bench_suite.picture import draw
from bench_suite.systems import COMPARED, SYSTEMS, System, available
from bench_suite.table import table
from bench_suite.targets import verdicts
from local_cluster import end_in_order_on_sigterm

RESULTS = Path("bench-results")
SLOW_AT_ONCE = 3
SLOW_REPEAT = 3
QUICK_S = 240.0
"""In quick mode no further fault is measured after so long."""
OTHERS: dict[str, Callable[[argparse.Namespace], Iterator[Record]]] = {
    "step": lambda args: steady.step(1, 8, 0.8) if args.quick else steady.step(4, 16, 1.0),
    "idle": lambda args: steady.idle(8.0 if args.quick else 20.0),
    "callback": lambda _args: alone.callback(),
    "survivors": lambda args: alone.survivors(args.kills),
    "etcd_kill": lambda args: etcd.etcd_kill(args.repeat),
    "etcd_leader": lambda args: etcd.etcd_leader(args.repeat),
    "etcd_away": lambda _args: etcd.etcd_away(),
    "etcd_joins": lambda _args: etcd.etcd_joins(),
    "many_nodes": many_nodes,
    "inprocess": inprocess,
    "simulation": lambda _args: alone.simulation(),
}
STEADY_MEASURES = ("step", "idle")
QUICK_OTHERS = (*STEADY_MEASURES, "callback")
QUICK_ORDER = ("torchrun fastest", "softrun", "torchft tuned")


def main() -> int:
    args = arguments().parse_args()
    end_in_order_on_sigterm()
    taken = records.read(args.show) if args.show else []
    if not args.show:
        args.records.parent.mkdir(parents=True, exist_ok=True)
        for record in measured(args):
            records.write(args.records, record)
            taken.append(record)
    print("\n" + "\n".join(table(taken)))
    if any(record["measure"] in (*COMPARED, *STEADY_MEASURES) for record in taken):
        print("\ntargets\n" + "\n".join(verdicts(taken)))
    if any(record["measure"] in COMPARED for record in taken):
        draw(taken, args.picture)
        print(f"\npicture: {args.picture}")
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "measures", nargs="*", metavar="MEASURE", help=f"all by default: {' '.join([*COMPARED, *OTHERS])}"
    )
    parser.add_argument(
        "--systems", default=[], type=lambda text: text.split(","), help=", ".join(s.name for s in SYSTEMS)
    )
    parser.add_argument("--quick", action="store_true", help="what takes less than 5 minutes, once")
    parser.add_argument("--repeat", type=int, help="of comparisons; 5, with --quick 1")
    parser.add_argument("--kills", type=int, default=100, help="in the count of survivors")
    parser.add_argument(
        "--records", "--json", type=Path, default=RESULTS / "records.jsonl", help="raw results, appended"
    )
    parser.add_argument("--picture", type=Path, default=RESULTS / "gaps.png")
    parser.add_argument("--show", type=Path, metavar="RECORDS", help="measure nothing: tell what these records say")
    return parser


def measured(args: argparse.Namespace) -> Iterator[Record]:
    args.repeat = args.repeat or (1 if args.quick else 5)
    names = args.measures or [*(QUICK_OTHERS if args.quick else OTHERS), *COMPARED]
    if unknown := set(names) - set(COMPARED) - set(OTHERS):
        raise SystemExit(f"scripts/bench: there is no measure {', '.join(sorted(unknown))}: see --help")
    ends = time.monotonic() + QUICK_S if args.quick else math.inf
    yield {"measure": "run", **machine(), "arguments": sys.argv[1:]}
    parts = [alone_measured(args, [name for name in OTHERS if name in names], ends), compared(args, names, ends)]
    for part in reversed(parts) if args.quick else parts:
        yield from part


def alone_measured(args: argparse.Namespace, names: Sequence[str], ends: float) -> Iterator[Record]:
    for name in names:
        print(f"\n{name}", flush=True)
        if time.monotonic() > ends:
            print("  there is no time for it", flush=True)
            continue
        try:
            for record in OTHERS[name](args):
                yield {**record, "measure": name}
        except DidNotHappenError as why:
            print(f"  {why}", flush=True)
            yield {"measure": name, "system": "softrun", "untried": str(why)}


def compared(args: argparse.Namespace, names: Sequence[str], ends: float) -> Iterator[Record]:
    measures = [name for name in COMPARED if name in names]
    if not measures:
        return
    print("\ncomparison", flush=True)
    chosen = [s for s in SYSTEMS if s.name in args.systems or not args.systems]
    systems = available(chosen, lambda line: print(f"  {line}", flush=True))
    if args.quick:
        last = len(QUICK_ORDER)
        systems.sort(key=lambda s: QUICK_ORDER.index(s.name) if s.name in QUICK_ORDER else last)
    yield from map(told, in_turns(systems, measures, args.repeat, ends, quick=args.quick))
    if not args.quick:
        yield from map(told, at_once([s for s in systems if s.slow], measures, min(args.repeat, SLOW_REPEAT)))


def in_turns(
    systems: Sequence[System], measures: Sequence[str], repeat: int, ends: float, *, quick: bool
) -> Iterator[Record]:
    for _ in range(repeat):
        for system in (system for system in systems if not system.slow):
            own = [measure for measure in measures if measure in system.quick or not quick]
            with closing(course(system, own)) as records_of_course:
                for record in records_of_course:
                    yield record
                    if time.monotonic() > ends:
                        print("  there is no time for more", flush=True)
                        return


def at_once(systems: Sequence[System], measures: Sequence[str], repeat: int) -> Iterator[Record]:
    """Records as they come, of several systems that wait beside each other."""
    arrived: SimpleQueue[Record | None] = SimpleQueue()

    def run(system: System) -> None:
        try:
            for record in course(system, measures):
                arrived.put(record)
        finally:
            arrived.put(None)

    with ThreadPoolExecutor(SLOW_AT_ONCE) as pool:
        try:
            courses = [pool.submit(run, system) for system in list(systems) * repeat]
            for _ in courses:
                yield from iter(arrived.get, None)
        except BaseException:
            given_up.set()
            pool.shutdown(cancel_futures=True)
            raise
    for each in courses:
        each.result()


def told(record: Record) -> Record:
    """Say what was measured, at once."""
    figures = [
        f"{k.removesuffix('_s')} {v * 1000:.0f} ms"
        for k, v in record.items()
        if k.endswith("_s") and isinstance(v, float)
    ]
    shown = ", ".join(figures) or record.get("failed") or record.get("untried")
    print(f"  {record['system']:18} {record['measure']:14} {shown}", flush=True)
    return record


def machine() -> Record:
    return {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version(), "torch": version("torch")}


if __name__ == "__main__":
    sys.exit(main())
