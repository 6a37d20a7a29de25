"""A training under DLRover, with its default settings or with tuned ones, and its master on this machine.

The master runs beside the nodes and is never harmed: the job ends with it.
"""

from __future__ import annotations

import peers

from bench_suite.job import TRAINERS, Job, Shape, Work
from bench_suite.torchrun_job import plain_arguments
from local_cluster import LocalCluster, free_port

# How long those who meet wait for others once there are enough; and how often an agent looks at its workers.
TUNED = ["--rdzv-conf=lastcall_timeout=1", "--monitor-interval=0.1"]


class DlroverJob(Job):
    def __init__(self, here: LocalCluster, shape: Shape, work: Work, *, tuned: bool) -> None:
        super().__init__(here, shape, work)
        self._settings = TUNED if tuned else []
        self._port = free_port()
        self._python = str(peers.python_of("dlrover"))

    def prepare(self) -> None:
        master = [self._python, "-m", "dlrover.python.master.main", "--platform=local", "--job_name=bench"]
        self.here.start("master", [*master, f"--port={self._port}", f"--node_num={self.shape.nodes}"])
        self.wait_for_port(self._port)

    def command(self, number: int) -> tuple[list[str], dict[str, str]]:
        launcher = [self._python, "-m", "dlrover.trainer.torch.elastic_run", *self._settings]
        shape = [f"--nnodes=1:{self.shape.nodes}", f"--nproc-per-node={self.shape.workers}", "--max-restarts=1000"]
        script = [str(TRAINERS / "bench_plain.py"), *plain_arguments(self)]
        return [*launcher, *shape, *script], {
            "DLROVER_MASTER_ADDR": f"127.0.0.1:{self._port}",
            "NODE_RANK": str(number),
            "NODE_ID": str(number),
            "NODE_NUM": str(self.shape.nodes),
        }
