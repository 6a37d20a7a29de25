"""What a ledger says of the samples: of each step, the last time that it was committed counts."""

from __future__ import annotations

import json
from pathlib import Path

from storm.job import Verdict
from storm.ledger import complaints

Entry = tuple[str, int, int, int, int, list[int]]
"""What, run, round, epoch, step, samples."""


def written(directory: Path, *entries: Entry, unfinished: str = "") -> Path:
    lines = [
        json.dumps({"what": what, "run": run, "round": world, "epoch": epoch, "step": step, "samples": samples})
        for what, run, world, epoch, step, samples in entries
    ]
    (directory / "0-1.jsonl").write_text("".join(f"{line}\n" for line in lines) + unfinished)
    return directory


def trains(run: int, world: int, epoch: int, step: int, *samples: int) -> tuple[Entry, Entry]:
    return ("takes", run, world, epoch, step, list(samples)), ("commits", run, world, epoch, step, [])


LAST_EPOCH = trains(0, 1, 1, 2, 0)


def test_each_sample_once(tmp_path: Path) -> None:
    steps = (*trains(0, 1, 0, 0, 0, 1), *trains(0, 1, 0, 1, 2, 3), *LAST_EPOCH)
    assert complaints(written(tmp_path, *steps), 4) == []
    assert complaints(written(tmp_path, *steps, unfinished='{"what": "tak'), 4) == []


def test_a_step_that_was_done_again_counts_once(tmp_path: Path) -> None:
    steps = (*trains(0, 1, 0, 0, 0, 1), *trains(0, 1, 0, 1, 2), *trains(0, 2, 0, 1, 2, 3), *LAST_EPOCH)
    assert complaints(written(tmp_path, *steps), 4) == []
    steps = (*trains(0, 9, 0, 0, 0), *trains(1, 1, 0, 0, 0, 1), *trains(1, 1, 0, 1, 2, 3), *LAST_EPOCH)
    assert complaints(written(tmp_path, *steps), 4) == [], "the next run's worlds begin with 1"


def test_what_is_lost_and_what_is_repeated_is_told(tmp_path: Path) -> None:
    steps = (*trains(0, 1, 0, 0, 0, 1), *trains(0, 1, 0, 1, 1, 3), *LAST_EPOCH)
    assert complaints(written(tmp_path, *steps), 4) == [
        "epoch 0: never trained on: [2]",
        "epoch 0: trained on twice: [1]",
    ]


def test_what_was_taken_and_not_committed_was_not_trained_on(tmp_path: Path) -> None:
    steps = (*trains(0, 1, 0, 0, 0, 1), trains(0, 1, 0, 1, 2, 3)[0], *LAST_EPOCH)
    assert complaints(written(tmp_path, *steps), 4) == [
        "step 1 was never committed",
        "epoch 0: never trained on: [2, 3]",
    ]


def test_a_job_that_was_told_to_end_goes_on_right_behind_what_it_saved(tmp_path: Path) -> None:
    first, left = trains(0, 1, 0, 0, 0, 1), ("leaves", 0, 1, 0, 1, [])
    second, last = trains(1, 1, 0, 1, 2, 3), trains(1, 1, 1, 2, 0)
    assert complaints(written(tmp_path, *first, left, *second, *last), 4) == []
    again = trains(1, 1, 0, 0, 0, 1)
    assert complaints(written(tmp_path, *first, left, *again, *second, *last), 4) == [
        "run 0 saved step 1, and the next one went on from 0"
    ]
    more = trains(0, 1, 0, 1, 2, 3)
    assert complaints(written(tmp_path, *first, *more, left, *second, *last), 4) == [
        "run 0 saved step 1, and had committed 2"
    ]


def test_a_verdict_is_one_line() -> None:
    verdict = Verdict(7, "soft", ["worker", "phase kept"], ["a step"], {"steps": 9, "ends resumed": 1}, took_s=3.2)
    assert str(verdict) == "seed 7: soft, 9 steps, 1 ends resumed, 3 s: worker, phase kept: a step"
