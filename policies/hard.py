"""The hard policy: every change restarts every worker, as torchrun does (RFC table, first row)."""

from __future__ import annotations

from collections.abc import Mapping

from softrun.policies.strategy import Response, RestartPolicyStrategy, Trigger, WorkerFailure


class HardRestartPolicyStrategy(RestartPolicyStrategy):
    """Terminate all workers, perform the re-rendezvous, start them again.

    Raises ValueError for any `worker_failure` but the default.
    """

    def table(self, worker_failure: WorkerFailure) -> Mapping[Trigger, Response]:
        if worker_failure is not WorkerFailure.NO_REPLACE:
            raise ValueError(
                f"--worker_failure {worker_failure.value} needs --restart_policy soft: hard restarts every worker"
            )
        return {
            Trigger.SCALE_UP: Response.STOP_MEET_START,
            Trigger.SCALE_DOWN: Response.STOP_MEET_START,
            Trigger.WORLD_BROKEN: Response.STOP_MEET_START,
            Trigger.WORKER_FAILURE: Response.STOP_MEET_START,
            Trigger.RESTARTS_SPENT: Response.END_JOB,
        }
