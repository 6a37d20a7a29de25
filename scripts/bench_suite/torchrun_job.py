"""A training under torchrun, with its default settings or with the fastest that work."""

from __future__ import annotations

import sys

from bench_suite.job import TRAINERS, Job, Shape, Work
from local_cluster import LocalCluster, free_port

FASTEST = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
# Without it restarted workers often read stale addresses and never step, whatever the settings.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class TorchrunJob(Job):
    def __init__(self, here: LocalCluster, shape: Shape, work: Work, *, fastest: bool = True) -> None:
        super().__init__(here, shape, work)
        self._settings = [f"--rdzv_conf={FASTEST}"] if fastest else []
        self._port = free_port()

    def command(self, number: int) -> tuple[list[str], dict[str, str]]:
        _ = number
        launcher = [sys.executable, "-m", "torch.distributed.run", *self._settings]
        script = [str(TRAINERS / "bench_plain.py"), *plain_arguments(self)]
        return [*launcher, *launcher_flags(self.shape, "c10d", f"127.0.0.1:{self._port}"), *script], OWN_STORE

    def wait_for_first_node(self) -> None:
        self.wait_for_port(self._port)


def launcher_flags(shape: Shape, backend: str, endpoint: str) -> list[str]:
    """Those that softrun and torchrun share."""
    meeting = [
        f"--nnodes=1:{shape.nodes}",
        f"--rdzv_backend={backend}",
        f"--rdzv_endpoint={endpoint}",
        "--rdzv_id=bench",
    ]
    alone = ["--standalone"]
    return [*(alone if shape.nodes == 1 else meeting), f"--nproc_per_node={shape.workers}", "--max_restarts=1000"]


def plain_arguments(job: Job) -> list[str]:
    checkpoint = [str(job.here.directory / "checkpoint")] if job.work.checkpoint else []
    return [job.work.kind, str(job.work.step_s), *checkpoint]
