"""What the tests of a file may take together, by the durations that `scripts/test --all --keep-durations` kept last."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parents[1]
DURATIONS = json.loads((TESTS / "durations.json").read_text())
MOST_S_OF_A_FILE = 240.0
MOST_S_OF_A_TEST = 60.0
"""Half of the time after which it counts as hanging (`timeout` in pyproject.toml)."""


def test_no_file_takes_more_than_its_budget() -> None:
    sums: defaultdict[str, float] = defaultdict(float)
    for name, took in DURATIONS.items():
        sums[name.partition("::")[0]] += took
    assert {file: took for file, took in sums.items() if took > MOST_S_OF_A_FILE} == {}


def test_no_test_takes_half_of_its_time() -> None:
    assert {name: took for name, took in DURATIONS.items() if took > MOST_S_OF_A_TEST} == {}


def test_the_durations_are_those_of_tests_that_exist() -> None:
    files = {name.partition("::")[0] for name in DURATIONS}
    assert {file for file in files if not (TESTS.parent / f"{file.replace('.', '/')}.py").exists()} == set()
    assert len(DURATIONS) > len(files) > 10
