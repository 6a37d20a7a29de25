"""The soft policy: survivors keep their processes and are told of the new world (RFC table, second row)."""

from __future__ import annotations

from collections.abc import Mapping

from softrun.policies.strategy import Response, RestartPolicyStrategy, Trigger, WorkerFailure


class SoftRestartPolicyStrategy(RestartPolicyStrategy):
    """Broadcast PAUSE, start the re-rendezvous, broadcast WORK. The chosen variant answers a worker's failure."""

    _ON_WORKER_FAILURE: Mapping[WorkerFailure, Response] = {
        # RFC option 1: "Terminate local workers, decrease max_restarts, proceed with scale-down event".
        WorkerFailure.NO_REPLACE: Response.WITHDRAW_AND_RETURN,
        # RFC option 2: restart only the failed worker, with "the max_restarts parameter per worker process".
        WorkerFailure.REPLACE: Response.REPLACE_WORKER,
        # RFC option 3: "Record the failure, and wait while other workers finish".
        WorkerFailure.RECORD: Response.RECORD_FAILURE,
    }

    def table(self, worker_failure: WorkerFailure) -> Mapping[Trigger, Response]:
        return {
            Trigger.SCALE_UP: Response.PAUSE_MEET_WORK,
            Trigger.SCALE_DOWN: Response.PAUSE_MEET_WORK,
            Trigger.WORLD_BROKEN: Response.PAUSE_MEET_WORK,
            Trigger.WORKER_FAILURE: self._ON_WORKER_FAILURE[worker_failure],
            Trigger.RESTARTS_SPENT: Response.LEAVE_JOB,
        }
