"""What the gate makes of a test that fails: it is run once more, alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_tests import MOST_PASSED_ALONE, verdict

ROOT = Path(__file__).parents[2]

ONCE = """
def test_fails_once():
    from pathlib import Path
    mark = Path(__file__).with_suffix(".mark")
    first = not mark.exists()
    mark.touch()
    assert not first, "something was in the way"
"""
TWICE = """
def test_fails_twice():
    assert False, "it is broken"
"""
WELL = """
def test_passes():
    from pathlib import Path
    with Path(__file__).with_suffix(".runs").open("a") as runs:
        runs.write("run\\n")
"""


LONG = """
import time
import pytest

@pytest.mark.parametrize("what", ["a", "b/c.py::d[e]"])
def test_takes_a_second(what):
    time.sleep(1)

class TestIn:
    def test_class(self):
        time.sleep(1)
"""
NAMES = """
from run_tests import name_of

def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):
        (config.rootpath / "names").write_text("\\n".join(map(name_of, items)))
"""


def run(folder: Path, *flags: str, **sources: str) -> tuple[int, str]:
    for name, source in sources.items():
        (folder / f"test_{name}.py").write_text(source)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT / 'scripts'}\n")  # not the project's tests
    run = subprocess.run(
        [sys.executable, ROOT / "scripts" / "run_tests.py", *flags, "-p", "xdist", "-n", "2", "."],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # which takes longer than all that is run here
        capture_output=True,
        text=True,
        check=False,
    )
    return run.returncode, run.stdout


@pytest.mark.slow
def test_a_test_that_passes_alone_is_listed_and_the_run_is_green(tmp_path: Path) -> None:
    code, output = run(tmp_path, once=ONCE, well=WELL)
    assert code == 0
    listed = output[output.index("PASSED ONLY ALONE: 1.") :]
    assert "something was in the way" in listed
    assert listed.splitlines()[-1] == "passed only alone: test_once::test_fails_once"
    assert (tmp_path / "test_well.runs").read_text() == "run\n", "only what failed is run again"


@pytest.mark.slow
def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    code, output = run(tmp_path, once=ONCE, twice=TWICE)
    assert code == 1
    assert output.splitlines()[-2:] == [
        "failed twice: test_twice::test_fails_twice",
        "passed only alone: test_once::test_fails_once",
    ]


@pytest.mark.slow
def test_a_run_without_failures_is_not_repeated(tmp_path: Path) -> None:
    code, output = run(tmp_path, well=WELL)
    assert code == 0
    assert "alone" not in output


@pytest.mark.slow
def test_durations_are_kept_by_the_names_that_order_the_tests(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    folder = tmp_path / "some" / "folder"
    folder.mkdir(parents=True)
    (tmp_path / "conftest.py").write_text(NAMES)
    (folder / "test_long.py").write_text(LONG)
    code, output = run(tmp_path, "--keep-durations", str(kept), once=ONCE)
    assert code == 0, output
    names = (tmp_path / "names").read_text().splitlines()
    assert json.loads(kept.read_text()).keys() == {name for name in names if "once" not in name}
    assert len(names) == 4


def test_more_than_a_few_that_pass_only_alone_fail_the_run() -> None:
    names = [f"test_a::test_{number}" for number in range(MOST_PASSED_ALONE + 1)]
    for count, expected in ((MOST_PASSED_ALONE, True), (MOST_PASSED_ALONE + 1, False)):
        few = names[:count]
        _, is_green = verdict(dict.fromkeys(few, "text"), dict.fromkeys(few, ""))
        assert is_green == expected


def test_what_was_not_run_again_has_not_passed() -> None:
    lines, is_green = verdict({"test_a::test_b": "text"}, {})
    assert not is_green
    assert "failed twice: test_a::test_b" in lines
