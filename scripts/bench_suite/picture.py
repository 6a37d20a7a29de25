"""Records as a picture: a row for each system, a marker for each fault, times on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import Record

from bench_suite.figures_told import TOLD
from bench_suite.records import median, tried, values

SHOWN = ("node killed", "node leaves", "worker killed", "worker killed, all back", "node joins", "pause at a join")
COLORS = ("#d1495b", "#edae49", "#00798c", "#30638e", "#7a5195", "#5b8c5a")
MARKERS = ("o", "D", "s", "^", "P", "v")
NEVER = "never"
WIDTH_IN, ROW_IN, REST_IN = 9.0, 0.55, 1.9


def draw(records: Sequence[Record], path: Path) -> None:
    """Write the picture; its format is that of the path's suffix."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    told = [next(each for each in TOLD if each.short == short) for short in SHOWN]
    measures = {each.measure for each in told}
    rows = list(dict.fromkeys(str(r["system"]) for r in records if r["measure"] in measures))
    seconds = [v for each in told for system in rows for v in values(records, each.measure, system, each.figure)]
    never_at = max(seconds, default=1) * 4
    figure, axes = pyplot.subplots(figsize=(WIDTH_IN, REST_IN + ROW_IN * len(rows)), layout="constrained")
    for number, each in enumerate(told):
        offset = (number - (len(told) - 1) / 2) * 0.12
        look: dict[str, Any] = {
            "color": COLORS[number],
            "marker": MARKERS[number],
            "linestyle": "none",
            "markersize": 6,
        }
        axes.plot([], [], label=each.short, **look)
        for row, system in enumerate(rows):
            found = values(records, each.measure, system, each.figure)
            if found:
                middle = median(records, each.measure, system, each.figure)
                axes.plot([min(found), max(found)], [row + offset] * 2, color=COLORS[number], linewidth=1.2, alpha=0.6)
                axes.plot([min(middle or 0, never_at)], [row + offset], **look)
            elif tried(records, each.measure, system):
                axes.plot([never_at], [row + offset], **look | {"fillstyle": "none"})
    axes.set_xscale("log")
    axes.set_xlim(min(seconds, default=0.01) / 1.6, never_at * 1.6)
    ticks = [tick for tick in (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100) if tick < never_at / 1.5]
    axes.set_xticks([*ticks, never_at], [*(words(tick) for tick in ticks), NEVER])
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    for row in range(len(rows) - 1):
        axes.axhline(row + 0.5, color="#dddddd", linewidth=0.8)
    axes.grid(axis="x", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title("from the fault to the next step: median, and from the least to the most", fontsize=10, loc="left")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def words(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.0f} s"
