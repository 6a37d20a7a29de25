"""A run's step log as a picture: a row for each worker, a mark for each step, a line for each thing that happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from local_cluster import Step

COLORS = ("#30638e", "#d1495b", "#5b8c5a", "#7a5195", "#edae49")
WIDTH_IN, ROW_IN, REST_IN = 10.0, 0.28, 1.0
HEADING_ROW = -1
NEAR_S = (-0.3, 0.7)
"""What the lower panel shows around the fault."""
AFTER_S = 5.0
"""What the upper panel shows of the last world."""


def draw(steps: Sequence[Step], happened: Mapping[str, float], fault: str, path: Path) -> None:
    """Write the picture of these steps; its format is that of the path's suffix.

    `happened` names moments by the monotonic clock. `fault` is one of them: the lower panel shows it from close by.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    workers = sorted({step.pid for step in steps})
    rows = {pid: row for row, pid in enumerate(workers)}
    began = steps[0].mono
    panel_in = ROW_IN * len(workers) + REST_IN
    figure, panels = pyplot.subplots(2, figsize=(WIDTH_IN, 2 * panel_in), layout="constrained")
    whole, near = panels
    for panel, origin in ((whole, began), (near, happened[fault])):
        _draw_steps(panel, steps, rows, origin)
        for text, at in happened.items():
            panel.axvline(at - origin, color="#444444", linewidth=0.8, linestyle="--")
            label = panel.text(at - origin, HEADING_ROW, f" {text}", va="center", clip_on=True)
            label.set_in_layout(False)  # one beyond the panel's edge must not take room from the panel
        panel.set_yticks(range(len(workers)), [f"worker process {pid}" for pid in workers])
        panel.set_ylim(len(workers) - 0.5, HEADING_ROW - 0.5)
    latest = min(step.mono for step in steps if step.round == steps[-1].round)
    whole.set_xlim(-1, max(latest, *happened.values()) - began + AFTER_S)
    near.set_xlim(*NEAR_S)
    whole.set_xlabel("seconds since the first step; each mark is a step, each color a world")
    near.set_xlabel(f"seconds since “{fault}”")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_steps(panel: Any, steps: Sequence[Step], rows: Mapping[int, int], origin: float) -> None:
    worlds = sorted({step.round for step in steps})
    for number, world in enumerate(worlds):
        of_world = [step for step in steps if step.round == world]
        panel.plot(
            [step.mono - origin for step in of_world],
            [rows[step.pid] for step in of_world],
            color=COLORS[number % len(COLORS)],
            linestyle="none",
            marker="|",
            markersize=9,
            markeredgewidth=0.8,
        )
