"""scripts/bench_restarts: nothing grows, however often a function is restarted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_restarts.py"
SLACK_MB = 16.0


@pytest.mark.processes
@pytest.mark.slow
def test_nothing_grows_with_restarts() -> None:
    command = [sys.executable, str(SCRIPT), "--restarts", "60", "--every", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"rank \d, +\d+ restarts: \d+ threads, \d+ descriptors", done.stdout)) == 2 * 13
    (more,) = re.findall(r"at most (-?[\d.]+) MB more", done.stdout)
    assert float(more) < SLACK_MB
