"""What is shown of a test that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hangs import is_hang, processes_and_logs

SITS = """
import time
def sits_here():
    print("ready", flush=True)
    time.sleep(600)
sits_here()
"""


def test_every_process_shows_where_it_is_and_every_log_how_it_ends(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("\n".join(map(str, range(100))))
    command = [sys.executable, "-c", SITS]
    with subprocess.Popen(command, env={**os.environ, "HERE": str(tmp_path)}, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            shown = processes_and_logs(tmp_path)
        finally:
            process.kill()
    assert f"--- process {process.pid}: {sys.executable} -c" in shown
    assert "sits_here" in shown.partition(f"process {process.pid}")[2].partition("---")[0] or os.geteuid() != 0
    assert shown.endswith("--- the last lines of a.log\n" + "\n".join(map(str, range(75, 100))))


def test_what_waited_in_vain_hangs() -> None:
    assert is_hang(TimeoutError("not within 100 s: steps"))
    assert is_hang(subprocess.TimeoutExpired("python", 100))
    with pytest.raises(pytest.fail.Exception) as failed:
        pytest.fail("Timeout (>120.0s) from pytest-timeout.")
    assert is_hang(failed.value)
    assert not is_hang(AssertionError("1 != 2"))
