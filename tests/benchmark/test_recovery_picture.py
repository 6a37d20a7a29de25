"""The picture that the demo ends with."""

from __future__ import annotations

from pathlib import Path

from local_cluster import Step
from recovery_picture import draw


def test_a_run_with_a_fault_is_drawn(tmp_path: Path) -> None:
    first = [Step(mono=i / 10, pid=pid, rank=0, world_size=2, round=1, step=i) for i in range(10) for pid in (7, 8)]
    second = [Step(mono=i / 10, pid=7, rank=0, world_size=1, round=2, step=i) for i in range(11, 20)]
    picture = tmp_path / "recovery.svg"
    draw([*first, *second], {"the node is killed": 1.0}, "the node is killed", picture)
    drawn = picture.read_text()
    for label in ("worker process 7", "worker process 8", "the node is killed"):
        assert label in drawn
