"""A worker's lifeline: the kernel ends the worker and its group with its agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from local_cluster import alive, has_ended
from softrun.agent.lifeline import Lifeline

AGENT = """
import signal, subprocess, sys
from softrun.agent.lifeline import Lifeline
lifeline = Lifeline()
worker = subprocess.Popen(
    ["sh", "-c", "sleep 600 & echo $!; exec sleep 600"], pass_fds=[lifeline.theirs], start_new_session=True
)
lifeline.tie(worker.pid)
print(worker.pid, flush=True)
signal.pause()
"""


def test_the_group_ends_with_the_agent() -> None:
    with subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        pids = [int(agent.stdout.readline()) for _ in range(2)]
        assert all(alive(pid) for pid in pids)
        agent.kill()
        agent.wait(10)
        assert all(has_ended(pid) for pid in pids)


def test_what_a_worker_has_left_goes_on_when_it_is_cut() -> None:
    lifeline = Lifeline()
    worker = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!"], pass_fds=[lifeline.theirs], start_new_session=True, stdout=subprocess.PIPE
    )
    lifeline.tie(worker.pid)
    assert worker.stdout is not None
    child = int(worker.stdout.readline())
    assert worker.wait(10) == 0
    lifeline.cut()
    assert alive(child)
    os.kill(child, signal.SIGKILL)
