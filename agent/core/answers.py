"""What the restart policy answers on this node."""

from __future__ import annotations

from softrun.agent.core.local_workers import LocalWorkers
from softrun.policies import Response, RestartPolicyStrategy, Trigger


class Answers:
    """The policy's table, corrected for workers that never ask for a world and so cannot be told of one."""

    def __init__(self, policy: RestartPolicyStrategy, workers: LocalWorkers) -> None:
        self._policy = policy
        self._workers = workers

    def to(self, trigger: Trigger) -> Response:
        """The policy's own answer."""
        return self._policy.respond(trigger)

    def stops_for(self, trigger: Trigger) -> bool:
        """Whether the workers are stopped and started again. Workers that never ask for a world always are."""
        return self._workers.never_asks or self.to(trigger) is Response.STOP_MEET_START

    @property
    def begins_again(self) -> bool:
        """Whether each restart begins all work again, as torch's own agent does, also what was finished."""
        return self._policy.restarts_everybody()

    @property
    def restarts_all(self) -> bool:
        """Whether all workers are restarted even if the next world has the same members."""
        return self.stops_for(Trigger.WORLD_BROKEN)
