"""An orphan reaper ends what its agent leaves behind, whatever that has done to hide."""

from __future__ import annotations

import os
import resource
import secrets
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from local_cluster import LocalCluster, alive, descendants, has_ended, shown_by
from softrun.agent.workers import orphan_reaper_main as reaper
from softrun.agent.workers.orphan_reaper import OrphanReapers

AGENT = """
import os, selectors, signal, sys
from pathlib import Path
from softrun.agent.workers.orphan_reaper import OrphanReapers
selector = selectors.DefaultSelector()
reapers = OrphanReapers(sys.argv[1], Path(sys.argv[2]), selector)
if os.fork() == 0:
    os.setsid()
    signal.pause()  # whoever is forked from an agent holds the pipes of its reapers
print("ready", flush=True)
while True:
    for key, _ in selector.select():
        key.data(0)
"""

FAMILIES = {
    "a session of its own": "setsid sleep 600 & echo $!; exec sleep 600",
    "no environment": "env -i setsid sleep 600 & echo $!; exec env -i sleep 600",
    "no parent": "(setsid env -i sleep 600 & echo $!) & wait; exec sleep 600",
}


@pytest.fixture
def token() -> str:
    """Each test has its own: the reapers of the one before may still be at work."""
    return secrets.token_hex(4)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    directory = tmp_path / "channels"
    (directory / "worker-0-1").mkdir(parents=True)
    return directory


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    return LocalCluster(tmp_path / "cluster")


@pytest.fixture
def begin() -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], int]]]:
    """Starts a process that has a child, both of which carry a mark, as a limit, in their environment, or as both."""
    started: list[int] = []

    def begin(
        mark: str, family: str = "a session of its own", limit: bool = True, environment: bool = True
    ) -> tuple[subprocess.Popen[bytes], int]:
        def carry() -> None:
            if limit:
                reaper.set_limits(*reaper.limits_with(mark))

        process = subprocess.Popen(
            ["sh", "-c", FAMILIES[family]],
            env={**os.environ, reaper.VARIABLE: mark} if environment else None,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=carry,
        )
        assert process.stdout is not None
        started.extend([process.pid, child := int(process.stdout.readline())])
        return process, child

    yield begin
    for pid in started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def agent(kept: Path, token: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", AGENT, token, str(kept)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "ready\n"
        family = descendants(agent.pid)
        yield agent
        for pid in [agent.pid, *family]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def reapers_of(agent: subprocess.Popen[str], cluster: LocalCluster) -> list[int]:
    """By the name that they show."""

    def both() -> list[int] | None:
        found = [pid for pid in descendants(agent.pid) if shown_by(pid) == f"orphan reaper of {agent.pid}"]
        return found if len(found) == 2 else None

    return cluster.wait_for("two reapers show themselves", both)


@pytest.mark.parametrize("also_killed", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_nobody_outlives_the_agent(
    agent: subprocess.Popen[str], begin: Callable[..., tuple[subprocess.Popen[bytes], int]], kept: Path,
    cluster: LocalCluster,
    family: str, also_killed: int, token: str,
) -> None:  # fmt: skip
    process, child = begin(reaper.mark_of(token, 7), family)
    _, others_child = begin(reaper.mark_of(token + "0", 7), family)
    reapers = reapers_of(agent, cluster)
    for pid in reapers:
        for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
            os.kill(pid, signum)  # as a scheduler does that sends a signal to all processes of a job
    for pid in [*reapers[:also_killed], agent.pid]:
        os.kill(pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert all(has_ended(pid) for pid in [child, *reapers])
    assert not kept.exists()
    assert alive(others_child), "a token that only begins alike is another agent's"


def test_a_reaper_that_is_lost_is_replaced(agent: subprocess.Popen[str], cluster: LocalCluster) -> None:
    lost, other = reapers_of(agent, cluster)
    os.kill(lost, signal.SIGKILL)
    assert has_ended(lost)
    new = set(reapers_of(agent, cluster))
    assert other in new
    assert lost not in new


@pytest.mark.parametrize("limit", [True, False])
def test_one_of_both_marks_is_enough(
    begin: Callable[..., tuple[subprocess.Popen[bytes], int]], limit: bool, token: str
) -> None:
    process, child = begin(reaper.mark_of(token, 1), limit=limit, environment=not limit)
    reaper.kill_all_of(token)
    assert process.wait(60) == -signal.SIGKILL
    assert has_ended(child)


def test_one_workers_mark_is_not_anothers(
    begin: Callable[..., tuple[subprocess.Popen[bytes], int]], token: str
) -> None:
    process, child = begin(reaper.mark_of(token, 1), "no parent")
    other, others_child = begin(reaper.mark_of(token, 2), "no parent")
    reaper.kill_marked(reaper.mark_of(token, 1))
    assert process.wait(60) == -signal.SIGKILL
    assert has_ended(child)
    assert alive(other.pid)
    assert alive(others_child)


def test_it_just_ends_when_all_is_well(
    begin: Callable[..., tuple[subprocess.Popen[bytes], int]], kept: Path, token: str
) -> None:
    process, child = begin(reaper.mark_of(token, 1))
    with selectors.DefaultSelector() as selector:
        OrphanReapers(token, kept, selector).close(all_is_well=True)
    assert alive(process.pid)
    assert alive(child)
    assert kept.exists()


def test_one_inside_of_another_agents_worker_carries_no_mark(
    kept: Path, cluster: LocalCluster, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be killed with all of that worker, before it has ended its own agent's workers."""
    before = resource.getrlimit(reaper.LIMIT)
    monkeypatch.setenv(reaper.VARIABLE, reaper.mark_of(token + "0", 1))
    reaper.set_limits(*reaper.limits_with(reaper.mark_of(token + "0", 1)))
    with selectors.DefaultSelector() as selector:
        reapers = OrphanReapers(token, kept, selector)
        pids = [process.pid for process in reapers._living.values()]
        cluster.wait_for(
            "they show themselves",
            lambda: all(shown_by(pid).startswith("orphan reaper of") for pid in pids),
            10,
        )
        reaper.kill_all_of(token + "0")
        assert all(alive(pid) for pid in pids)
        reapers.close(all_is_well=True)
    reaper.set_limits(*before)
