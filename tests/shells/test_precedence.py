"""An agent comes first at the processors; what it starts does not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from softrun.agent.precedence import AHEAD, come_first, stand_in_line

CAP_SYS_NICE = 23
SHOW = [sys.executable, "-I", "-S", "-c", "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"]


def may_come_first() -> bool:
    """Where it may not, all stays as it was."""
    status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
    return bool(int(status["CapEff"], 16) >> CAP_SYS_NICE & 1)


def own() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def test_the_thread_and_those_that_it_starts_come_first() -> None:
    before, threads = own(), []
    first = before - AHEAD if may_come_first() else before
    with come_first():
        thread = threading.Thread(target=lambda: threads.append(own()))
        thread.start()
        thread.join()
        assert own() == first
    assert threads == [first]
    assert own() == before


def test_a_process_has_the_place_that_the_agent_was_started_with() -> None:
    before = own()
    with come_first():
        first = own()
        with stand_in_line():
            assert int(subprocess.check_output(SHOW)) == before
        assert own() == first
    with stand_in_line():
        assert int(subprocess.check_output(SHOW)) == before
