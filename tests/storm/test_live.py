"""What a storm of blocks is judged by: a wrong answer, and workers that end with different states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from storm.job import Verdict
from storm.live import judge

A, B = "n/0", "n/1"


def judged(directory: Path, *, ok_of_b: bool) -> Verdict:
    history = directory / "history"
    history.mkdir()
    incs = {A: "1.1", B: "1.1"}
    for worker, ok in ((A, True), (B, ok_of_b)):
        events: list[dict[str, Any]] = [
            {"t": 1, "e": "start"},
            {"t": 1, "e": "call"},
            {"t": 2, "e": "reply", "live": [A, B], "incs": incs, "round": 1_000_001},
            {"t": 3, "e": "call", "vote": "ok"},
            {"t": 4, "e": "reply", "live": [A, B], "incs": incs, "ok": ok, "round": 1_000_002},
        ]
        text = "".join(json.dumps({"p": worker, **event}) + "\n" for event in events)
        (history / f"{worker.replace('/', '')}-1.trainer.jsonl").write_text(text)
    verdict = Verdict(7, "1x2")
    judge(verdict, directory)
    return verdict


def test_a_right_history(tmp_path: Path) -> None:
    verdict = judged(tmp_path, ok_of_b=True)
    assert not verdict.complaints
    assert verdict.tally == {"told of success": 2, "told of failure": 0, "evicted": 0}
    assert str(verdict) == "seed 7: 1x2, 2 told of success, 0 told of failure, 0 evicted, 0 s: : all is well"


def test_a_wrong_one_is_kept(tmp_path: Path) -> None:
    [complaint] = judged(tmp_path, ok_of_b=False).complaints
    assert complaint.startswith("not valid (atomic): worker 'n/0' got {'n/0', 'n/1'} at t=4, but ")
    assert json.loads((tmp_path / "history.json").read_text())["procs"] == [A, B]


def test_no_history_is_a_complaint(tmp_path: Path) -> None:
    verdict = Verdict(7, "1x2")
    judge(verdict, tmp_path)
    assert "has no recording" in verdict.complaints[0]
