"""A worker's lifeline: the kernel ends the worker and its group with its agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from local_cluster import PATIENCE_S, alive, has_ended
from softrun.agent.workers.lifeline import Lifeline, tie

AGENT = """
import os, signal, subprocess
from softrun.agent.workers.lifeline import Lifeline
lifeline = Lifeline()
worker = subprocess.Popen(
    ["sh", "-c", "sleep 600 & echo $!; exec sleep 600"],
    pass_fds=[lifeline.theirs],
    preexec_fn=lifeline.tie_a_fork,
    start_new_session=True,
)
os.write(1, b"%d\\n" % worker.pid)  # at once: the shell writes there as well
signal.pause()
"""


def test_the_group_ends_with_the_agent() -> None:
    with subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        try:
            said = agent.stdout.readline() + agent.stdout.readline()
            pids = [int(pid) for pid in said.split()]
            assert len(pids) == 2, said
            assert [pid for pid in pids if not alive(pid)] == []
        finally:
            agent.kill()  # it would never end by itself
        agent.wait(60)
        assert all(has_ended(pid) for pid in pids)


def test_what_a_worker_has_left_goes_on_when_it_is_cut() -> None:
    lifeline = Lifeline()
    worker = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!"],
        pass_fds=[lifeline.theirs],
        preexec_fn=lifeline.tie_a_fork,
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None
    child = int(worker.stdout.readline())
    assert worker.wait(60) == 0
    lifeline.cut()
    lifeline.cut()
    assert alive(child)
    os.kill(child, signal.SIGKILL)


def test_who_is_tied_too_late_ends_at_once() -> None:
    """The agent was gone before: no event comes any more."""
    lifeline = Lifeline()
    theirs = os.dup(lifeline.theirs)
    lifeline.cut()
    if (pid := os.fork()) == 0:
        os.setsid()
        tie(theirs)
        os._exit(77)
    os.close(theirs)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


DIES = """
import os, signal, subprocess
from softrun.agent.workers.processes import Program, Start

class Popen(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        print(self.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

subprocess.Popen = Popen
Program(Start("sleep", ("600",)))
"""


def test_a_program_is_tied_before_the_agent_knows_of_it() -> None:
    died = subprocess.run([sys.executable, "-c", DIES], stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    assert died.returncode == -signal.SIGKILL
    assert has_ended(int(died.stdout))
