"""Nobody outlives an agent, whoever is killed with it, be it that they show another name or have left their session."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, alive, descendants, has_ended, send, shown_by, softrun_command

TRAINERS = Path(__file__).parent / "trainers"
STARTS = ("warm", "cold", "spawn", "fork", "forkserver")
KILLED = (("agent",), ("agent", "orphan reaper"), ("fork server", "orphan reaper", "agent"))


class Family:
    """One node with one worker that has children of all kinds."""

    def __init__(self, cluster: LocalCluster, start: str, name: str = "node", *args: str) -> None:
        self.directory = cluster.directory / f"family-{name}"
        self.directory.mkdir()
        if start in ("warm", "cold"):
            flags = ("--standalone", *(["--no_warm_start"] if start == "cold" else []))
            command = softrun_command(*flags, script=TRAINERS / "family.py", args=[str(self.directory), *args])
        else:
            command = [sys.executable, str(TRAINERS / "launch_family.py"), start, str(self.directory)]
        self.cluster = cluster
        self.node: Node = cluster.start(name, command)

    def wait(self) -> None:
        def there() -> bool:
            return any(path.name.startswith("worker") for path in self.directory.iterdir())

        self.cluster.wait_for("the family is there", there)

    def pids(self, *kinds: str) -> list[int]:
        found = (path.name.split("-") for path in self.directory.iterdir())
        return [int(pid) for kind, pid in found if kind in (kinds or ("worker", "member", "daemon", "program"))]

    def guards(self) -> dict[str, list[int]]:
        agent = self.node.process.pid
        shown = {pid: shown_by(pid) for pid in descendants(agent)}
        return {
            "agent": [agent],
            "orphan reaper": [pid for pid, name in shown.items() if name.startswith("orphan reaper of")],
            "fork server": [pid for pid, name in shown.items() if name.startswith("softrun fork server")],
        }

    def end(self) -> None:
        for pid in self.pids():
            send(pid, signal.SIGKILL)


Begin = Callable[..., Family]


@pytest.fixture
def begin(cluster: LocalCluster) -> Iterator[Begin]:
    families: list[Family] = []

    def begin(start: str, name: str = "node", *args: str) -> Family:
        families.append(Family(cluster, start, name, *args))
        return families[-1]

    yield begin
    for family in families:
        family.end()


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_nobody_outlives_the_agent(begin: Begin, start: str) -> None:
    families = {killed: begin(start, "-".join(killed)) for killed in KILLED}
    for killed, family in families.items():
        family.wait()
        guards = family.guards()
        for pid in [guards[kind][0] for kind in killed if guards[kind]]:
            os.kill(pid, signal.SIGKILL)
        family.node.wait()
        pids = family.pids()
        assert len(pids) == 5
        assert all(has_ended(pid) for pid in [*pids, *guards["orphan reaper"], *guards["fork server"]]), (killed, pids)


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_no_worker_outlives_all_that_watch_it(begin: Begin, start: str) -> None:
    """Then only those are left who have made a session of their own, and nobody knows them."""
    family = begin(start)
    family.wait()
    guards = family.guards()
    assert len(guards["orphan reaper"]) == 2
    for pid in [*guards["orphan reaper"], *guards["fork server"], *guards["agent"]]:
        os.kill(pid, signal.SIGKILL)
    family.node.wait()
    left = [pid for pid in family.pids("worker", "member") if not has_ended(pid)]
    assert not left


@pytest.mark.parametrize("start", ["warm", "cold", "fork"])
def test_nobody_outlives_an_ordinary_stop(begin: Begin, start: str) -> None:
    family = begin(start)
    family.wait()
    family.node.signal(signal.SIGTERM)
    family.node.wait()
    assert all(has_ended(pid) for pid in family.pids())


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_nobody_outlives_a_worker_that_fails(begin: Begin, start: str) -> None:
    family = begin(start, "node", "3")
    assert family.node.wait() == 1
    assert len(family.pids()) == 5
    assert all(has_ended(pid) for pid in family.pids())


def test_a_worker_that_ends_in_order_may_leave_something_to_finish(begin: Begin) -> None:
    family = begin("warm", "node", "0")
    assert family.node.wait() == 0
    left = family.pids("member", "daemon", "program")
    assert all(alive(pid) for pid in left)
    assert len(left) == 4
