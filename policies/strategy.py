"""The interface of a restart policy (RFC, "RestartPolicy interface").

On a `Trigger` the engine asks the job's policy for the `Response`, and carries it out. A policy is a table: it keeps no
state, reads no clock and never sees the job, so each of its rows can be read and tested.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum


class Trigger(Enum):
    """Why this agent must act. Triggers are local to the agent; peers and workers see a `WorldChangeEvent` instead."""

    SCALE_UP = "scale up"
    """The next world has new workers, and none was lost."""
    SCALE_DOWN = "scale down"
    """The next world has lost workers, or this one is over and there is no next one yet."""
    WORLD_BROKEN = "world broken"
    """The same workers form a new world, after a fault or because the last one broke."""
    WORKER_FAILURE = "worker failure"
    """A worker of this node failed."""
    RESTARTS_SPENT = "restarts spent"
    """A worker of this node failed for good: no restart is left, or none is allowed any more."""


class Response(Enum):
    """What the agent does about a trigger."""

    STOP_MEET_START = "stop the local workers, meet, start them in the new world"
    PAUSE_MEET_WORK = "tell the local workers PAUSE, meet, tell them WORK in the new world"
    WITHDRAW_AND_RETURN = "stop the local workers, leave the world at once, come back as a new node"
    REPLACE_WORKER = "start the failed worker again, and tell all others of a new world"
    RECORD_FAILURE = "remember the failure and go on without the failed worker"
    LEAVE_JOB = "leave with the failure; the others go on without this node"
    END_JOB = "end the job on every node with the failure"


#: The responses that the engine can carry out for each trigger.
CHOICES: Mapping[Trigger, frozenset[Response]] = {
    Trigger.SCALE_UP: frozenset({Response.STOP_MEET_START, Response.PAUSE_MEET_WORK}),
    Trigger.SCALE_DOWN: frozenset({Response.STOP_MEET_START, Response.PAUSE_MEET_WORK}),
    Trigger.WORLD_BROKEN: frozenset({Response.STOP_MEET_START, Response.PAUSE_MEET_WORK}),
    Trigger.WORKER_FAILURE: frozenset(
        {
            Response.STOP_MEET_START,
            Response.WITHDRAW_AND_RETURN,
            Response.REPLACE_WORKER,
            Response.RECORD_FAILURE,
        }
    ),
    Trigger.RESTARTS_SPENT: frozenset({Response.LEAVE_JOB, Response.END_JOB}),
}


class WorkerFailure(Enum):
    """The variants of the soft policy (RFC, "Worker failures", options 1 to 3)."""

    NO_REPLACE = "no-replace"
    """Restart all workers of the node."""
    REPLACE = "replace"
    """Start only the failed worker again."""
    RECORD = "record"
    """Go on without the failed worker."""


class RestartPolicyStrategy(ABC):
    """What to do for each trigger. Subclass it, return a table, and register the class as an entry point.

    `worker_failure` is the value of `--worker_failure`; a policy without variants must refuse any but the default.
    Raises ValueError if the table lacks a trigger, or answers one with a response that is not in its `CHOICES`.
    """

    def __init__(self, worker_failure: WorkerFailure = WorkerFailure.NO_REPLACE) -> None:
        self._responses = dict(self.table(worker_failure))
        for trigger, choices in CHOICES.items():
            response = self._responses.get(trigger)
            if response not in choices:
                raise ValueError(
                    f"policy {type(self).__name__} answers {trigger.name} with {response}: "
                    f"choose one of {', '.join(sorted(c.name for c in choices))}"
                )

    @abstractmethod
    def table(self, worker_failure: WorkerFailure) -> Mapping[Trigger, Response]:
        """Return one response for each trigger, out of `CHOICES`. Raise ValueError for a variant that you lack."""

    def respond(self, trigger: Trigger) -> Response:
        """Return the table's response to `trigger`."""
        return self._responses[trigger]

    def restarts_everybody(self) -> bool:
        """Return whether each change restarts all workers and spent restarts end the job, as with torch's own agent."""
        return set(self._responses.values()) == {Response.STOP_MEET_START, Response.END_JOB}
