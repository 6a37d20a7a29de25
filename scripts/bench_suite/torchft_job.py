"""A training under torchft, with its default settings or with tuned ones.

Every worker is a replica group of its own, as in torchft's example of data parallelism: whoever is left goes on. Its
lighthouse, without which nobody gets on, runs beside the nodes and is never harmed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import peers

from bench_suite.job import TRAINERS, Job, Shape, Work
from local_cluster import LocalCluster, free_port

REPLICAS = Path(__file__).parent / "replicas.py"
# A tenth of the default of 5 s: on a busy machine, less takes healthy replicas for dead.
TUNED = ["--heartbeat_timeout_ms=500", "--quorum_tick_ms=10", "--join_timeout_ms=1000"]


class TorchftJob(Job):
    def __init__(self, here: LocalCluster, shape: Shape, work: Work, *, settings: str) -> None:
        super().__init__(here, shape, work)
        self._settings = settings
        self._port = free_port()
        self._python = peers.python_of("torchft")

    def prepare(self) -> None:
        lighthouse = [str(self._python.parent / "torchft_lighthouse"), "--min_replicas=1", f"--bind=[::]:{self._port}"]
        self.here.start("lighthouse", [*lighthouse, *(TUNED if self._settings == "tuned" else [])])
        self.wait_for_port(self._port)

    def command(self, number: int) -> tuple[list[str], dict[str, str]]:
        trainer = [str(TRAINERS / "bench_torchft.py"), self._settings, self.work.kind, str(self.work.step_s)]
        node = [sys.executable, str(REPLICAS), str(number), str(self.shape.workers)]
        return [*node, str(self._python), *trainer], {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self._port}"}
