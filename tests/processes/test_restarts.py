"""Groups are built again and again by env://, as unmodified trainers do, and never from stale addresses.

torchrun's workers of a restart can read what an earlier one left in the store (pytorch#135712). The workers here are
forked from their agent, so that twenty restarts take seconds.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, free_port

pytestmark = [pytest.mark.processes, pytest.mark.slow]

Start = Callable[..., Node]
TIMES = 20
FORKED = ("--run_path", "--start_method=fork", "--max_restarts=1000", "--rdzv_conf=last_call_timeout=0.3")


@pytest.fixture
def met(tmp_path: Path) -> Path:
    """Where the trainers note whom they have met."""
    directory = tmp_path / "met"
    directory.mkdir()
    return directory


def wait_for_worlds(cluster: LocalCluster, met: Path) -> None:
    """Until they have met TIMES times: a few worlds at a time, each with all patience."""

    def wait_for_world(count: int) -> None:
        cluster.wait_for(f"world {count} or later", lambda: newest_world(met) >= count)

    for count in range(0, TIMES, 5):
        wait_for_world(count)
    wait_for_world(TIMES)


def newest_world(met: Path) -> int:
    return max((int(path.name.split("-")[1]) for path in met.iterdir()), default=-1)


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_135712_hard_restarts_meet_twenty_times(cluster: LocalCluster, start: Start, met: Path, backend: str) -> None:
    endpoint = f"127.0.0.1:{free_port()}"

    def node(name: str, place: int) -> Node:
        flags = (*FORKED, f"--node_rank={place}")
        return start(
            name,
            "meet.py",
            str(met),
            str(TIMES),
            policy="hard",
            nnodes="2",
            flags=flags,
            backend=(backend, endpoint),
        )

    nodes = [node("a", 0), node("b", 1)]
    wait_for_worlds(cluster, met)
    assert [n.wait() for n in nodes] == [0, 0]
    assert {path.name for path in met.iterdir()} == {
        f"met-{count}-{rank}-of-4" for count in range(TIMES + 1) for rank in range(4)
    }


def test_soft_restarts_meet_twenty_times(cluster: LocalCluster, start: Start, met: Path) -> None:
    flags = (*FORKED, "--worker_failure=replace")
    node = start("a", "meet_again.py", str(met), str(TIMES), "3", nproc=3, nnodes="1", flags=flags)
    wait_for_worlds(cluster, met)
    assert node.wait() == 0
    found = {path.name for path in met.iterdir()}

    def whole(count: int, size: int) -> bool:
        return {f"met-{count}-{rank}-of-{size}" for rank in range(size)} <= found

    # The survivors go on at once, as two, and a replacement may be there before they have met, or after.
    assert sum(whole(count, 3) for count in range(TIMES + 1)) > TIMES // 3, "the lost ones were replaced"


def test_scale_ups_meet_again_and_again(cluster: LocalCluster, start: Start, met: Path) -> None:
    def last() -> tuple[int, list[str]]:
        """The newest world in which anybody has met, and who."""
        newest = newest_world(met)
        return newest, sorted(path.name.split("-", 2)[2] for path in met.glob(f"met-{newest}-*"))

    def meet(size: int, after: int) -> int:
        everybody = [f"{rank}-of-{size}" for rank in range(size)]
        cluster.wait_for(f"{size} meet", lambda: last()[1] == everybody and last()[0] > after)
        return last()[0]

    start("a", "meet_again.py", str(met), nproc=2, flags=FORKED)
    count = meet(2, -1)
    for number in range(5):
        b = start(f"b{number}", "meet_again.py", str(met), nproc=2, flags=FORKED)
        count = meet(4, count)
        b.signal(signal.SIGTERM)
        count = meet(2, count)
