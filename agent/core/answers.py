"""What the policy answers on this node."""

from __future__ import annotations

from softrun.agent.core.local_workers import LocalWorkers
from softrun.policies import Response, RestartPolicyStrategy, Trigger


class Answers:
    """The policy's table, and what workers that nothing reaches make of it."""

    def __init__(self, policy: RestartPolicyStrategy, workers: LocalWorkers) -> None:
        self._policy = policy
        self._workers = workers

    def to(self, trigger: Trigger) -> Response:
        """The policy's own."""
        return self._policy.respond(trigger)

    def stops_for(self, trigger: Trigger) -> bool:
        """Does this cost the workers their processes? Those that never ask for a world, too, whatever the policy."""
        return self._workers.never_asks or self.to(trigger) is Response.STOP_MEET_START

    @property
    def restarts_all(self) -> bool:
        """Does a world of the same members cost all of them their processes?"""
        return self.stops_for(Trigger.WORLD_BROKEN)
