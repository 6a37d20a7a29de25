"""scripts/bench_rebuild: every way builds groups that work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_rebuild.py"


@pytest.mark.processes
@pytest.mark.slow
def test_every_way_is_timed() -> None:
    command = [sys.executable, str(SCRIPT), "--ranks", "2", "--turns", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    ways = re.findall(r"^   2 ranks  (\S.*?) +\d+\.\d$", done.stdout, re.MULTILINE)
    assert ways[:2] == ["softrun", "torch: destroy and init"], done.stdout + done.stderr
