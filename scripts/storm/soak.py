"""Many runs: one line for each that fails, with what replays it, and a table of all at the end."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from local_cluster import Begin, begin
from local_etcd import LocalEtcd
from storm.checkers import complaints, healthy_lost
from storm.plan import Plan
from storm.run import Run, StoppedError, tell


@dataclass(frozen=True)
class Verdict:
    plan: Plan
    complaints: tuple[str, ...]
    story: str = ""
    """Of a run that failed: all that it has left to read."""
    faults: int = 0
    rounds: int = 0
    lost: int = 0
    took_s: float = 0.0

    @property
    def replay(self) -> str:
        return f"scripts/soak --real --replay {self.plan.seed} --family {self.plan.family}"


def run_plan(
    plan: Plan, directory: Path, etcd: str | None, stop: threading.Event | None = None, begin: Begin = begin
) -> Verdict:
    """Run it in a new directory below this one, whose name is the job's; `begin` starts its launchers."""
    own = Path(tempfile.mkdtemp(prefix=f"{plan.family}-{plan.seed}-", dir=directory))
    try:
        run = Run(plan, own, etcd, stop, begin).run()
        said = tuple(complaints(run))
        story = tell(own) if said else ""
        return Verdict(plan, said, story, len(run.struck), run.rounds, len(healthy_lost(run)), run.took_s)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def soak(plans: list[Plan], jobs: int) -> int:
    """1 if one of them fails, else 0."""
    began = time.monotonic()
    verdicts: list[Verdict] = []
    with _workplace(plans) as (directory, etcd):
        for verdict in _run_all(plans, jobs, directory, etcd):
            verdicts.append(verdict)
            if verdict.complaints:
                print(f"{verdict.plan}\n  " + "\n  ".join(verdict.complaints), flush=True)
                print(f"  replay it: {verdict.replay}\n  its story: {_keep(verdict)}", flush=True)
    print("\n".join(table(verdicts)))
    failed = sum(bool(verdict.complaints) for verdict in verdicts)
    print(f"{len(verdicts)} runs in {time.monotonic() - began:.0f} s, {failed} failed")
    return 1 if failed else 0


def replay(plan: Plan) -> int:
    """Run it once and tell everything."""
    print(plan, flush=True)
    with _workplace([plan]) as (directory, etcd):
        own = directory / f"{plan.family}-{plan.seed}"
        own.mkdir()
        said = complaints(Run(plan, own, etcd).run())
        print(tell(own))
        print("\n".join(said) or "all is well")
        kept = Path(tempfile.mkdtemp(prefix="softrun-storm-")) / own.name
        shutil.copytree(own, kept, ignore=shutil.ignore_patterns("channels", "tmp"))
        print(f"the logs are in {kept}")
    return 1 if said else 0


def _keep(verdict: Verdict) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="softrun-storm-"))
    story = directory / f"{verdict.plan.family}-{verdict.plan.seed}.txt"
    story.write_text(f"{verdict.plan}\n{verdict.story}\n" + "\n".join(verdict.complaints) + "\n")
    return story


@contextmanager
def _workplace(plans: list[Plan]) -> Iterator[tuple[Path, str | None]]:
    """A directory that is gone afterwards, and an etcd if one is needed."""
    with tempfile.TemporaryDirectory(prefix="storm-") as name:
        directory = Path(name)
        if not any(plan.store == "etcd" for plan in plans):
            yield directory, None
            return
        (directory / "etcd").mkdir()
        with LocalEtcd(directory / "etcd", flags=["--unsafe-no-fsync"]) as etcd:
            yield directory, etcd.endpoint


def _run_all(plans: list[Plan], jobs: int, directory: Path, etcd: str | None) -> Iterator[Verdict]:
    """As they end. Whatever ends this early, Ctrl-C and SIGTERM included, ends the jobs as well."""
    stop = threading.Event()

    def one(plan: Plan) -> Verdict | None:
        if stop.is_set():
            return None
        try:
            return run_plan(plan, directory, etcd, stop)
        except StoppedError:
            return None
        except Exception as error:
            return Verdict(plan, (f"the run itself failed: {type(error).__name__}: {error}"[:2000],))

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ThreadPoolExecutor(jobs) as pool:
            try:
                yield from (verdict for verdict in pool.map(one, plans) if verdict is not None)
            finally:
                stop.set()
    finally:
        signal.signal(signal.SIGTERM, before)


def table(verdicts: Iterable[Verdict]) -> list[str]:
    """A line for each family, policy, layout and store."""
    kinds: dict[tuple[str, ...], list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        plan = verdict.plan
        kinds[plan.family, plan.policy, plan.layout, plan.store].append(verdict)
    head = ("family", "policy", "layout", "store", "runs", "failed", "faults", "worlds a fault", "most", "lost", "s")
    rows = [head, *((*kind, *_figures(kinds[kind])) for kind in sorted(kinds))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _figures(verdicts: list[Verdict]) -> tuple[str, ...]:
    """Worlds a fault: without the first one, median and most of the runs in which something struck."""
    each = [(verdict.rounds - 1) / verdict.faults for verdict in verdicts if verdict.faults]
    return (
        str(len(verdicts)),
        str(sum(bool(verdict.complaints) for verdict in verdicts)),
        str(sum(verdict.faults for verdict in verdicts)),
        f"{median(each):.1f}" if each else "-",
        f"{max(each):.1f}" if each else "-",
        str(sum(verdict.lost for verdict in verdicts)),
        f"{median(verdict.took_s for verdict in verdicts):.0f}",
    )
