"""A training under softrun, with its default settings."""

from __future__ import annotations

from bench_suite.job import TRAINERS, Job, Shape, Work
from bench_suite.torchrun_job import launcher_flags, plain_arguments
from local_cluster import LocalCluster, free_port, softrun_command


class SoftrunJob(Job):
    """`policy` is soft or hard; under soft, `replace` starts a failed worker alone; `etcd` is where to meet."""

    def __init__(
        self,
        here: LocalCluster,
        shape: Shape,
        work: Work,
        *,
        policy: str = "soft",
        replace: bool = False,
        etcd: str | None = None,
    ) -> None:
        super().__init__(here, shape, work)
        self._policy = policy
        self._replace = ["--worker_failure=replace"] if replace else []
        self._port = 0 if etcd else free_port()
        self._world_store = ("etcd3", etcd) if etcd else ("c10d", f"127.0.0.1:{self._port}")

    def command(self, number: int) -> tuple[list[str], dict[str, str]]:
        _ = number
        flags = [f"--restart_policy={self._policy}", *self._replace, *launcher_flags(self.shape, *self._world_store)]
        if self._policy == "soft":
            script, args = TRAINERS / "bench_soft.py", [self.work.kind, str(self.work.step_s)]
        else:
            script, args = TRAINERS / "bench_plain.py", plain_arguments(self)
        return softrun_command(*flags, script=script, args=args), {}

    def wait_for_first_node(self) -> None:
        if self._port:
            self.wait_for_port(self._port)
