"""Real agents and workers. Every test gets a cluster of its own and must leave no process behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hangs import stack
from nursery import Nursery

from local_cluster import Begin, LocalCluster, Node, free_port, listens, shown_by, softrun_command

TRAINERS = Path(__file__).parent / "trainers"
WITHOUT_TORCH = ("count.py", "parts.py", "stubborn.py", "told.py")
"""By themselves they start sooner."""


@pytest.fixture
def launch(nursery: Nursery) -> Begin:
    """How launchers start; a module whose tests look at that has its own."""
    return nursery.begin


@pytest.fixture
def cluster(tmp_path: Path, launch: Begin) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, begin=launch) as cluster:
        yield cluster
        for node in cluster.nodes:
            with contextlib.suppress(Exception):
                node.wait(0)
        living = [node for node in cluster.nodes if node.process.poll() is None]
        for node in living:
            node.kill_all()
        try:
            cluster.wait_for("no orphan is left", lambda: not cluster.orphans())
        except TimeoutError as error:
            left = [f"--- orphan {pid}: {shown_by(pid)}\n{stack(pid)}" for pid in cluster.orphans()]
            raise TimeoutError("\n".join([str(error), *left])) from None


@pytest.fixture
def start(cluster: LocalCluster) -> Callable[..., Node]:
    """`start("a", "count.py", "100", "0.01", nnodes="1:3")` starts one node of the test's job."""
    port = free_port()

    def start(
        name: str,
        trainer: str,
        *args: str,
        policy: str = "soft",
        nnodes: str = "1:4",
        nproc: int = 2,
        flags: tuple[str, ...] = (),
        job: str = "test",
        backend: tuple[str, str] | None = None,
        env: dict[str, str] | None = None,
        warm: bool = False,
    ) -> Node:
        cold = ("--no_warm_start",) if trainer in WITHOUT_TORCH and not warm else ()
        command = softrun_command(
            f"--restart_policy={policy}",
            f"--nnodes={nnodes}",
            f"--nproc_per_node={nproc}",
            f"--rdzv_backend={backend[0] if backend else 'c10d'}",
            f"--rdzv_endpoint={backend[1] if backend else f'127.0.0.1:{port}'}",
            f"--rdzv_id={job}",
            *cold,
            *flags,
            script=TRAINERS / trainer,
            args=args,
        )
        node = cluster.start(name, command, env)
        if backend is None and len(cluster.nodes) == 1:  # it founds the job, whoever wins the race for the port else
            cluster.wait_for("the first node listens", lambda: listens(port))
        return node

    return start
