"""Records told as tables: for each figure, a line for each system."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from measuring import Record

from bench_suite.figures_told import STEADY, TOLD, Told
from bench_suite.records import all_of, median, most, systems, tried, values

OWN = "softrun"


def table(records: Sequence[Record]) -> Iterator[str]:
    for told in TOLD:
        lines = [line(records, told, system) for system in systems(records, told.measure)]
        if lines:
            toll = "kept process  repeated  lost  broken" if told.with_toll else ""
            yield f"{told.title:55} {'median ms':>9} {'[spread]':>16} {'taken':>6} {'times':>9}  {toll}".rstrip()
            yield from lines
            yield ""
    yield from steady(records)


def steady(records: Sequence[Record]) -> Iterator[str]:
    """What is paid while nothing happens."""
    launches = tried(records, "step", OWN)
    for figure in STEADY if launches else ():
        over, alike = (all_of(launches, f"{figure}_{kind}") for kind in ("over", "alike"))
        yield f"step of 5 ms, {figure:10} over torchrun's {shares(over)}   torchrun over torchrun {shares(alike)}"
    for system in systems(records, "idle"):
        for record in tried(records, "idle", system):
            own, helpers = (f"{record[f'{whose}core_share']:.2%} of a core" for whose in ("", "helpers_"))
            memory = f"{record['resident_mib']:.0f} MiB, its helpers {helpers} and {record['helpers_mib']:.0f} MiB more"
            yield f"idle, {system:20} {own}, {memory}"


def shares(found: Sequence[float]) -> str:
    first, middle, third = statistics.quantiles(found, n=4)
    return f"median {middle:+.2%}, quartiles {first:+.2%} to {third:+.2%}, n {len(found)}"


def line(records: Sequence[Record], told: Told, system: str) -> str:
    found = values(records, told.measure, system, told.figure)
    all_tries = tried(records, told.measure, system)
    if not found:
        return (
            f"   {system:52} {'never':>9} {'':16} {f'0/{len(all_tries)}':>6} {'':9}  {why_not(records, told, system)}"
        )
    middle = median(records, told.measure, system, told.figure)
    own = median(records, told.measure, OWN, told.figure)
    ratio = "" if system == OWN or not own or middle is None else f"{middle / own:.1f}"
    spread = f"[{milliseconds(min(found))} to {milliseconds(max(found))}]"
    taken = f"{len(found)}/{len(all_tries)}"
    shown = f"   {system:52} {milliseconds(middle):>9} {spread:>16} {taken:>6} {ratio:>9}"
    if told.with_toll:
        shown += "  " + toll(records, told.measure, system)
    if len(found) < len(all_tries):
        shown += f"  {why_not(records, told, system)}"
    return shown.rstrip()


def toll(records: Sequence[Record], measure: str, system: str) -> str:
    """The least that kept their processes, and the most that any survivor lost in any try."""
    kept = min(values(records, measure, system, "kept"), default=0)
    of = most(records, measure, system, "survivors") or 0
    most_of = [most(records, measure, system, figure) for figure in ("repeated", "lost", "broken")]
    repeated, lost, broken = ("-" if value is None else f"{value:.0f}" for value in most_of)
    return f"{f'{kept:.0f} of {of:.0f}':>12} {repeated:>9} {lost:>5} {broken:>7}"


def why_not(records: Sequence[Record], told: Told, system: str) -> str:
    of_system = [r for r in records if r["measure"] == told.measure and r.get("system") == system]
    reasons = [str(r[why]) for r in of_system for why in ("failed", "untried", "note") if why in r]
    return f"({reasons[0]})" if reasons else ""


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return "never" if seconds == float("inf") else f"{seconds * 1000:.0f}"
