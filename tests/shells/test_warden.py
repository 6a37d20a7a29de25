"""The warden ends what its agent leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from local_cluster import alive
from softrun.agent import warden


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    directory = tmp_path / "channels"
    (directory / "worker-0-1").mkdir(parents=True)
    return directory


def start_warden(mark: str, directory: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", warden.__file__, mark, str(directory)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def start_family(mark: str) -> tuple[subprocess.Popen[bytes], int]:
    """A process with a child in a session of its own, both marked."""
    process = subprocess.Popen(
        ["sh", "-c", "setsid sleep 600 & echo $!; exec sleep 600"],
        env={**os.environ, warden.VARIABLE: mark},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_it_kills_the_family_when_the_pipe_closes(kept: Path) -> None:
    keeper = start_warden("mark-1", kept)
    process, child = start_family("mark-1")
    other, other_child = start_family("mark-10")
    assert keeper.stdin is not None
    keeper.stdin.close()
    assert keeper.wait(10) == 0
    assert process.wait(10) == -signal.SIGKILL
    assert not alive(child)
    assert not kept.exists()
    assert alive(other.pid), "a mark that only begins alike is another one"
    assert alive(other_child)
    for pid in (other.pid, other_child):
        os.kill(pid, signal.SIGKILL)
    other.wait(10)


def test_it_just_ends_when_all_is_well(kept: Path) -> None:
    keeper = start_warden("mark-2", kept)
    process, child = start_family("mark-2")
    keeper.communicate(warden.ALL_IS_WELL, timeout=10)
    assert alive(process.pid)
    assert kept.exists()
    for pid in (process.pid, child):
        os.kill(pid, signal.SIGKILL)
    process.wait(10)
