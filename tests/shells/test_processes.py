"""How a worker's end is noticed, however it was started."""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from local_cluster import PATIENCE_S
from softrun.agent.workers.processes import Function, Process, Program, Start


def leave_a_child() -> None:
    """It has the descriptors of its parent, and goes on for a while."""
    if os.fork() == 0:
        time.sleep(PATIENCE_S)
        os._exit(0)


def wait_to_be_killed() -> None:
    time.sleep(PATIENCE_S)


def function(start_method: str, call: object) -> Function:
    assert callable(call)
    process = Function(start_method, Start(call))
    process.release()
    return process


def has_ended(process: Process, within_s: float = PATIENCE_S) -> bool:
    end = process.exit_fd()
    try:
        return bool(select.select([end], [], [], within_s)[0])
    finally:
        os.close(end)


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_a_function_that_has_returned_lives_until_it_is_released(start_method: str) -> None:
    process = Function(start_method, Start(collect))
    assert process.gate.poll(PATIENCE_S)
    assert process.has_returned()
    assert not has_ended(process, 0.2)
    process.release()
    assert has_ended(process)
    assert process.reap(PATIENCE_S) == 0


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_a_function_that_was_killed_has_not_returned(start_method: str) -> None:
    process = Function(start_method, Start(wait_to_be_killed))
    os.kill(process.pid, signal.SIGKILL)
    assert has_ended(process)
    assert process.gate.poll(PATIENCE_S)
    assert not process.has_returned()


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_a_function_that_leaves_a_child_has_ended(start_method: str) -> None:
    process = function(start_method, leave_a_child)
    assert has_ended(process)
    assert process.reap() == 0
    os.killpg(process.pid, signal.SIGKILL)


class Left:
    """The agent has let go of it, in a cycle that is not collected yet."""

    def __init__(self, path: str) -> None:
        self.itself = self
        self.path = path

    def __del__(self) -> None:
        Path(self.path).write_text(str(os.getpid()))


def collect() -> int:
    return gc.collect()


def test_a_function_collects_nothing_of_the_agents(tmp_path: Path) -> None:
    gc.disable()
    try:
        Left(str(tmp_path / "collected"))
        process = function("fork", collect)
        assert has_ended(process)
        assert not (tmp_path / "collected").exists(), "its threads are not there to wait for"
        gc.collect()
        assert (tmp_path / "collected").read_text() == str(os.getpid())
    finally:
        gc.enable()


def test_a_program_has_ended() -> None:
    process = Program(Start(sys.executable, ("-c", "import sys; sys.exit(3)")))
    assert has_ended(process)
    assert process.reap() == 3


def test_an_exit_code_that_comes_late_is_waited_for() -> None:
    process = function("forkserver", wait_to_be_killed)
    server = int(stat(process.pid)[1])
    os.kill(server, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGKILL)
    while stat(process.pid)[0] != "Z":
        time.sleep(0.005)
    assert not has_ended(process, within_s=0.0)
    assert process.reap() is None
    os.kill(server, signal.SIGCONT)
    assert has_ended(process)
    assert process.reap() == -signal.SIGKILL


def stat(pid: int) -> list[str]:
    """Its state, its parent and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
