"""What to show of a test that hangs: the stacks of every process of its job, and the last lines of its logs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from local_cluster import all_pids, descendants, marked, shown_by

MOST_PROCESSES, MOST_LOGS, LOG_LINES = 40, 20, 25
DUMP_S = 10.0


def is_hang(error: BaseException) -> bool:
    return isinstance(error, (TimeoutError, subprocess.TimeoutExpired)) or "from pytest-timeout" in str(error)


def processes_and_logs(directory: Path | None) -> str:
    """Of all processes that this one has begun, and of those that have the test's directory in their environment."""
    own = descendants(os.getpid())
    pids = own + [pid for pid in all_pids() if directory and pid not in own and marked(pid, str(directory))]
    parts = [f"--- process {pid}: {shown_by(pid)[:200]}\n{stack(pid)}" for pid in pids[:MOST_PROCESSES]]
    logs = sorted(directory.rglob("*.log"))[:MOST_LOGS] if directory else []
    for log in logs:
        last = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        parts.append("\n".join([f"--- the last lines of {log.name}", *last]))
    return "\n".join(parts)


def stack(pid: int) -> str:
    """What each thread of a Python process is at; of another program why there is none."""
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if program is None:
        return "no stack: py-spy is not installed"
    try:
        dump = [program, "dump", "--nonblocking", "--pid", str(pid)]
        done = subprocess.run(dump, capture_output=True, text=True, timeout=DUMP_S)
    except subprocess.TimeoutExpired:
        return f"no stack within {DUMP_S:g} s"
    return done.stdout.strip() or f"no stack: {done.stderr.strip().splitlines()[-1:]}"
