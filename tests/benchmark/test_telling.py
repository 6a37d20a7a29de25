"""What the benchmark tells of its records: medians, the table, the targets, the picture."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from measuring import Record

from bench_suite import records
from bench_suite.picture import draw
from bench_suite.table import table
from bench_suite.targets import TARGETS, noise_of, verdicts

LOST: Record = {"survivors": 4, "repeated": 0, "lost": 0}
RUN: list[Record] = [
    {"measure": "run", "cores": 2},
    *(
        {"measure": "node_killed", "system": "softrun", "gap_s": s, "kept": 4, "broken": 1, **LOST}
        for s in (0.05, 0.06, 0.09)
    ),
    {"measure": "node_killed", "system": "torchrun fastest", "gap_s": 6.0, "kept": 0, "broken": None, **LOST},
    {"measure": "node_killed", "system": "torchrun default", "failed": "not within 150 s: the survivors' next step"},
    {"measure": "node_killed", "system": "torchft tuned", "untried": "it did not start: not within 120 s"},
    {"measure": "worker_killed", "system": "softrun", "gap_s": 0.07, "all_back_s": 0.5, "kept": 3, **LOST},
    {"measure": "worker_killed", "system": "softrun hard", "gap_s": 0.5, "all_back_s": 0.5, "kept": 0, **LOST},
    {"measure": "worker_killed", "system": "torchrun fastest", "gap_s": 2.0, "all_back_s": 2.0, "kept": 0, **LOST},
    {"measure": "scale_up", "system": "softrun", "all_step_s": 2.0, "pause_s": 0.06, "kept": 4, **LOST, "lost": 1},
]


def test_records_are_lines_that_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "records.jsonl"
    for record in RUN:
        records.write(path, record)
    assert [{k: v for k, v in record.items() if k != "at"} for record in records.read(path)] == RUN


def test_a_try_that_failed_takes_for_ever() -> None:
    failed: list[Record] = [{"measure": "leave", "system": "softrun", "failed": "not within 60 s"}] * 2
    taken: list[Record] = [{"measure": "leave", "system": "softrun", "gap_s": 0.1}]
    assert records.median(taken, "leave", "softrun", "gap_s") == 0.1
    assert records.median(taken + failed, "leave", "softrun", "gap_s") == math.inf
    assert records.median([], "leave", "softrun", "gap_s") is None


def test_a_figure_that_was_reached_before_the_failure_counts() -> None:
    half: list[Record] = [{"measure": "cold_start", "system": "softrun", "of_2_s": 1.0, "failed": "not within 120 s"}]
    assert records.median(half, "cold_start", "softrun", "of_2_s") == 1.0
    assert records.median(half, "cold_start", "softrun", "of_4_s") == math.inf


def test_what_could_not_be_tried_is_no_failure() -> None:
    assert records.median(RUN, "node_killed", "torchft tuned", "gap_s") is None
    assert records.median(RUN, "node_killed", "torchrun default", "gap_s") == math.inf


def test_the_table_has_a_line_for_each_system() -> None:
    lines = [" ".join(line.split()) for line in table(RUN)]
    assert "softrun 60 [50 to 90] 3/3 4 of 4 0 0 1" in lines
    assert "torchrun fastest 6000 [6000 to 6000] 1/1 100.0 0 of 4 0 0 -" in lines
    assert "torchrun default never 0/1 (not within 150 s: the survivors' next step)" in lines
    assert "torchft tuned never 0/0 (it did not start: not within 120 s)" in lines


def test_what_is_paid_while_nothing_happens_is_told() -> None:
    idle: Record = {"core_share": 0.001, "resident_mib": 200.4, "helpers_core_share": 0.0, "helpers_mib": 5.0}
    lines = list(table([step_record(0.004, 0.001), {"measure": "idle", "system": "softrun", **idle}]))
    assert "clock      over torchrun's median +0.40%, quartiles +0.40% to +0.40%, n 10" in lines[0]
    assert lines[-1].endswith("0.10% of a core, 200 MiB, its helpers 0.00% of a core and 5 MiB more")


def test_no_records_no_table() -> None:
    assert list(table([{"measure": "run"}])) == []


@pytest.mark.parametrize(
    ("title", "told"),
    [
        ("node killed: at most 80 ms", "kept 60 ms"),
        ("50 times as quick as torchrun, fastest settings", "kept 100 times"),
        ("400 times as quick as torchrun, default settings", "kept it never did"),
        ("4 times as quick as torchft, tuned settings", "not measured"),
        ("worker killed: survivors at most 80 ms", "kept 70 ms"),
        ("all ranks back: at most 400 ms", "MISSED 500 ms"),
        ("hard restart of 4: 5 times as quick as torchrun", "MISSED 4 times"),
        ("no step lost", "MISSED 1 at most"),
        ("no step repeated", "kept 0 at most"),
        ("idle agent: less than 0.2 % of a core", "not measured"),
    ],
)
def test_targets_are_judged_by_the_records(title: str, told: str) -> None:
    assert f"{title} {told}" in [" ".join(line.split()) for line in verdicts(RUN)]


def test_every_target_is_told() -> None:
    assert len(list(verdicts([]))) == len(TARGETS)
    assert all(line.endswith("not measured") for line in verdicts([]))


def step_record(over: float, clock_noise: float) -> Record:
    """Ten turns, alike but for `over`; the clock has this noise, the processor time has none."""
    quiet = [0.0001, -0.0001] * 5
    return {
        "measure": "step",
        "system": "softrun",
        "clock_over": [over] * 10,
        "clock_alike": [clock_noise, -clock_noise] * 5,
        "processor_over": [over / 2] * 10,
        "processor_alike": quiet,
        "beside_over": [over / 4] * 10,
        "beside_alike": quiet,
    }


def test_a_step_is_judged_by_the_clock_where_that_is_quiet() -> None:
    verdict = next(line for line in verdicts([step_record(0.004, 0.001)]) if "step of 5 ms" in line)
    assert "kept" in verdict
    assert "+0.40% by the clock" in verdict
    assert "MISSED" in next(line for line in verdicts([step_record(0.006, 0.001)]) if "step of 5 ms" in line)


def test_a_step_is_judged_by_processor_time_where_the_clock_is_loud() -> None:
    verdict = next(line for line in verdicts([step_record(0.008, 0.2)]) if "step of 5 ms" in line)
    assert "+0.40% by processor time," in verdict


def test_a_machine_may_be_too_noisy_to_tell() -> None:
    loud = {f"{figure}_alike": [0.2, -0.2] * 5 for figure in ("clock", "processor", "beside")}
    verdict = next(line for line in verdicts([{**step_record(0.004, 0.2), **loud}]) if "step of 5 ms" in line)
    assert "too noisy +0.10% by processor time beside the step" in " ".join(verdict.split())


def test_noise_is_no_less_than_what_was_seen() -> None:
    assert noise_of([0.01] * 10) == pytest.approx(0.01)
    assert noise_of([0.01, -0.01] * 50) < noise_of([0.01, -0.01] * 5)


def test_the_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "gaps.png"
    draw(RUN, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_nothing_but_failures_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "gaps.png"
    draw([{"measure": "node_killed", "system": "softrun", "failed": "not within 60 s"}], path)
    assert path.exists()
