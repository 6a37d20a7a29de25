"""What softrun is to reach, judged by the records of one run: kept, MISSED, not measured, or not to be told."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from measuring import Record

from bench_suite.figures_told import STEADY
from bench_suite.records import all_of, median, most, tried

STEP_SHARE = 0.005
FASTEST = "torchrun fastest"


@dataclass(frozen=True)
class Verdict:
    found: str
    kept: bool | None
    """None if the machine's noise leaves it open."""


@dataclass(frozen=True)
class Target:
    title: str
    judge: Callable[[Sequence[Record]], Verdict | None]
    """None where what it needs was not measured."""


def at_most_ms(measure: str, figure: str, limit: float) -> Callable[[Sequence[Record]], Verdict | None]:
    def judge(records: Sequence[Record]) -> Verdict | None:
        found = median(records, measure, "softrun", figure)
        return None if found is None else Verdict(f"{found * 1000:.0f} ms", found * 1000 <= limit)

    return judge


def none_of(measure: str, figure: str) -> Callable[[Sequence[Record]], Verdict | None]:
    def judge(records: Sequence[Record]) -> Verdict | None:
        found = most(records, measure, "softrun", figure)
        return None if found is None else Verdict(f"{found:.0f} at most", found == 0)

    return judge


def quicker(
    measure: str, figure: str, than: str, times: float, own: str = "softrun"
) -> Callable[[Sequence[Record]], Verdict | None]:
    """The other's median is so many times that of `own`; a system that failed takes for ever."""

    def judge(records: Sequence[Record]) -> Verdict | None:
        mine, theirs = median(records, measure, own, figure), median(records, measure, than, figure)
        if mine is None or theirs is None:
            return None
        if math.isinf(theirs):
            return Verdict("it never did", not math.isinf(mine))
        ratio = theirs / mine
        return Verdict(f"{ratio:.3g} times", ratio >= times)

    return judge


def idle_share(records: Sequence[Record]) -> Verdict | None:
    share = median(records, "idle", "softrun", "core_share")
    return None if share is None else Verdict(f"{share:.3%}", share < 0.002)


def idle_memory(records: Sequence[Record]) -> Verdict | None:
    mine, theirs = (median(records, "idle", system, "resident_mib") for system in ("softrun", FASTEST))
    return None if mine is None or theirs is None else Verdict(f"{mine:.0f} of {theirs:.0f} MiB", mine <= theirs)


def step_share(records: Sequence[Record]) -> Verdict | None:
    """By the clock, if the machine is quiet enough for that; otherwise by what is less noisy."""
    launches = tried(records, "step", "softrun")
    if not launches:
        return None
    *_, last = STEADY
    for figure, by in STEADY.items():
        over, alike = (all_of(launches, f"{figure}_{kind}") for kind in ("over", "alike"))
        effect, noise = statistics.median(over), noise_of(alike)
        if noise <= STEP_SHARE or figure == last:
            is_kept = effect <= STEP_SHARE if noise <= STEP_SHARE else None
            return Verdict(f"{effect:+.2%} by {by}, noise ±{noise:.2%}", is_kept)
    raise AssertionError("the last figure is taken whatever its noise")


def noise_of(alike: Sequence[float]) -> float:
    """How far from 0 the median of as many alike may be: 95 % of the normal distribution, by the quartiles; and no
    less than it was here."""
    first, _, third = statistics.quantiles(alike, n=4)
    of_median = 1.96 * 1.2533 * (third - first) / 1.349 / math.sqrt(len(alike))
    return max(of_median, abs(statistics.median(alike)))


TARGETS = (
    Target("node killed: at most 80 ms", at_most_ms("node_killed", "gap_s", 80)),
    Target("   50 times as quick as torchrun, fastest settings", quicker("node_killed", "gap_s", FASTEST, 50)),
    Target(
        "   400 times as quick as torchrun, default settings", quicker("node_killed", "gap_s", "torchrun default", 400)
    ),
    Target("   4 times as quick as torchft, tuned settings", quicker("node_killed", "gap_s", "torchft tuned", 4)),
    Target("worker killed: survivors at most 80 ms", at_most_ms("worker_killed", "gap_s", 80)),
    Target("   all ranks back: at most 400 ms", at_most_ms("worker_killed", "all_back_s", 400)),
    Target(
        "   hard restart of 4: 5 times as quick as torchrun",
        quicker("worker_killed", "all_back_s", FASTEST, 5, "softrun hard"),
    ),
    Target("scale-up: pause at most 80 ms", at_most_ms("scale_up", "pause_s", 80)),
    Target("   no step lost", none_of("scale_up", "lost")),
    Target("   no step repeated", none_of("scale_up", "repeated")),
    Target("node leaves on SIGTERM: no step lost", none_of("leave", "lost")),
    Target("step of 5 ms: at most 0.5 % over torchrun's", step_share),
    Target(
        "cold start of 2: no slower than torchrun",
        quicker("cold_start", "first_step_of_2_s", FASTEST, 1, "softrun hard"),
    ),
    Target(
        "cold start of 4: no slower than torchrun",
        quicker("cold_start", "first_step_of_4_s", FASTEST, 1, "softrun hard"),
    ),
    Target("idle agent: less than 0.2 % of a core", idle_share),
    Target("   resident memory no more than torchrun's", idle_memory),
)


WORDS = {True: "kept", False: "MISSED", None: "too noisy"}


def verdicts(records: Sequence[Record]) -> Iterator[str]:
    for target in TARGETS:
        verdict = target.judge(records)
        told = "not measured" if verdict is None else f"{WORDS[verdict.kept]:9} {verdict.found}"
        yield f"   {target.title:52} {told}"
