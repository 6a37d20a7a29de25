"""Machines that do not show everything."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from local_cluster import LocalCluster, softrun_command

TRAINERS = Path(__file__).parent / "trainers"
WITHOUT_PROC = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]


def can_hide_proc() -> bool:
    return shutil.which("unshare") is not None and subprocess.run([*WITHOUT_PROC, "true"], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_hide_proc(), reason="this machine lets nobody mount anything")
@pytest.mark.parametrize(
    ("flags", "trainer"),
    [((), "count.py"), (("--no_warm_start",), "count.py"), (("--restart_policy=soft",), "reduce.py")],
)
def test_without_proc_a_job_ends_as_ever(cluster: LocalCluster, flags: tuple[str, ...], trainer: str) -> None:
    command = softrun_command(
        "--standalone", "--nproc_per_node=2", *flags, script=TRAINERS / trainer, args=["10", "0.01"]
    )
    node = cluster.start("a", [*WITHOUT_PROC, *command])
    assert node.wait() == 0, node.output()
    assert len({step.pid for step in cluster.steps()}) == 2
