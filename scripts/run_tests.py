"""Runs pytest with the arguments given; a test that fails among others is run once more, alone.

If it fails again, the run has failed. If it passes, it is listed at the end with its first traceback: it is a bug, in
the test or in softrun, until somebody has explained it. More than three of them fail the run too.

With `--keep-durations FILE` first, a green run writes there how long its tests took, so that the next ones can start
with the longest (tests/conftest.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    import pytest

FAILED = 1
"""pytest's exit code if tests have failed."""
MOST_RUN_AGAIN = 20
MOST_PASSED_ALONE = 3
TRACEBACK_LINES = 80
SLOWEST = 20
KEPT_S = 1.0
"""Tests that take less are not worth an order."""
RULE = "=" * 120


def main(arguments: list[str]) -> int:
    kept_in = None
    if arguments[:1] == ["--keep-durations"]:
        kept_in, arguments = Path(arguments[1]), arguments[2:]
    with TemporaryDirectory(prefix="softrun-tests-") as folder:
        # A cache of its own: failures of earlier runs must not be run again.
        pytest = [sys.executable, "-m", "pytest", *arguments, "-o", f"cache_dir={folder}/cache"]
        first, second = Path(folder, "first.xml"), Path(folder, "second.xml")
        code = subprocess.run([*pytest, f"--durations={SLOWEST}", f"--junitxml={first}"], check=False).returncode
        if code == FAILED:
            code = run_again(pytest, first, second)
        if not code and kept_in is not None:
            kept = {name: took for name, took in sorted(durations(first).items()) if took >= KEPT_S}
            kept_in.write_text(json.dumps(kept, indent=0) + "\n")
        return code


def run_again(pytest: list[str], first: Path, second: Path) -> int:
    """Run what failed in the first run, alone, and say what comes of it. Returns the exit code."""
    failed = {name: text for name, text in outcomes(first).items() if text}
    if len(failed) > MOST_RUN_AGAIN:
        print(f"{len(failed)} tests failed: too many to run each once more, alone", flush=True)
        return FAILED
    print(f"\nwhat failed among others is run once more, alone: {len(failed)}", flush=True)
    alone = ["-n", "0", "--last-failed", "--last-failed-no-failures=none", f"--junitxml={second}"]
    code = subprocess.run([*pytest, *alone], check=False).returncode
    if code not in (0, FAILED):
        return code
    lines, is_green = verdict(failed, outcomes(second))
    print("\n".join(lines), flush=True)
    return 0 if is_green else FAILED


def outcomes(results: Path) -> dict[str, str]:
    """The tests in a file that pytest has written with --junitxml: how each failed, or an empty text if it did not."""
    found: dict[str, str] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        failures = [part.text or "failed" for part in case if part.tag in ("failure", "error")]
        found[name] = "\n".join([*filter(None, [found.get(name)]), *failures])
    return found


def name_of(item: pytest.Item) -> str:
    """What a file of results calls a test."""
    place, bracket, parameters = item.nodeid.partition("[")
    file, *names = place.split("::")
    module = file.removesuffix(".py").replace("/", ".")
    return f"{'.'.join([module, *names[:-1]])}::{names[-1]}{bracket}{parameters}"


def durations(results: Path) -> dict[str, float]:
    """Of each test in such a file that did not fail the seconds that it took, set-up and tear-down included."""
    took = {
        f"{case.get('classname', '')}::{case.get('name', '')}": float(case.get("time", 0))
        for case in ElementTree.parse(results).iter("testcase")
    }
    return {name: took[name] for name, text in outcomes(results).items() if not text}


def verdict(failed: dict[str, str], alone: dict[str, str]) -> tuple[list[str], bool]:
    """What to print of the tests that `failed` among others, given their outcomes alone, and whether all is well."""
    passed_alone = [name for name in failed if not alone.get(name, "was not run")]
    failed_twice = [name for name in failed if name not in passed_alone]
    lines = [""]
    if passed_alone:
        lines += [RULE, f"PASSED ONLY ALONE: {len(passed_alone)}. Each is a bug, in the test or in softrun.", RULE]
        for name in passed_alone:
            lines += ["", f"--- {name} among others:", *failed[name].splitlines()[-TRACEBACK_LINES:]]
        lines.append("")
    lines += [f"failed twice: {name}" for name in failed_twice]
    lines += [f"passed only alone: {name}" for name in passed_alone]
    if len(passed_alone) > MOST_PASSED_ALONE:
        lines.append(f"{len(passed_alone)} passed only alone; at most {MOST_PASSED_ALONE} may")
    return lines, not failed_twice and len(passed_alone) <= MOST_PASSED_ALONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
