"""The directory of an agent's channels: what was left behind is removed, and nothing else."""

from __future__ import annotations

import fcntl
import os
import selectors
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from softrun.agent.workers.channels import ChannelsDirectory
from softrun.agent.workers.orphan_reaper import OrphanReapers
from softrun.runtime.channel.channel import ChannelError, EventWriter

AGENT = """
import os, signal, sys
from softrun.agent.workers.channels import ChannelsDirectory
print(ChannelsDirectory.make().path, flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOFTRUN_CHANNEL_ROOT", str(tmp_path))
    return tmp_path


def leave_one() -> Path:
    """As an agent does that is killed with its reapers."""
    with subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        path = Path(agent.stdout.readline().strip())
        EventWriter.create(path / "worker-0-1")
        (path / "worker-0-1.said").touch()
        agent.kill()
    return path


def test_what_a_killed_agent_left_is_removed_by_the_next(root: Path) -> None:
    left = leave_one()
    assert left.exists()
    directory = ChannelsDirectory.make()
    assert list(root.iterdir()) == [directory.path]
    directory.close()
    assert not list(root.iterdir())


def test_what_a_living_agent_has_stays() -> None:
    first, second = ChannelsDirectory.make(), ChannelsDirectory.make()
    assert first.path.exists()
    second.close()
    first.close()


def test_what_may_be_anybodys_stays(root: Path) -> None:
    host = f"softrun-{socket.gethostname()}-"
    (root / f"{host}results" / "run-1").mkdir(parents=True)
    (root / f"{host}notes").touch()
    (root / "softrun-elsewhere-abcdefgh" / "worker-0-1").mkdir(parents=True)
    (root / f"{host}link").symlink_to(root / "softrun-elsewhere-abcdefgh")
    before = sorted(root.rglob("*"))
    ChannelsDirectory.make().close()
    assert sorted(root.rglob("*")) == before


def test_one_that_is_removed_before_it_is_locked_is_made_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, times = fcntl.flock, iter(range(100))

    def meddle(descriptor: int, kind: int) -> None:
        if next(times) == 0:
            next(root.iterdir()).rmdir()
        flock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", meddle)
    directory = ChannelsDirectory.make()
    assert directory.path.exists()
    directory.close()


def test_a_file_system_without_locks_is_refused_in_one_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ChannelError, match=r"Function not implemented.*SOFTRUN_CHANNEL_ROOT"):
        ChannelsDirectory.make()
    assert not list(root.iterdir())


def test_reapers_that_cannot_be_started_leave_no_descriptor(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(root / "nothing"))
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the links are not wanted
    with selectors.DefaultSelector() as selector, pytest.raises(FileNotFoundError):
        OrphanReapers("1", root, selector)
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
