"""Restarting a function in its process, and the callbacks around it; from NVIDIA's guide to in-process restart.

| family         | called                                                 | may                                       |
|----------------|--------------------------------------------------------|-------------------------------------------|
| RankAssignment | between two iterations, on one rank for all            | say who is which, active, or leaves       |
| Initialize     | at the start of every iteration                        | refuse it; an Exception leads to another  |
| Abort          | at a fault, in a thread, mostly while it still runs    | get the function out of what it waits for |
| Finalize       | after a fault, once the process groups are gone        | clean up; a failure ends this rank        |
| HealthCheck    | after Finalize, and before an iteration                | find this rank unfit, which ends it       |
| Completion     | when the function has returned                         | report                                    |
| Terminate      | when the wrapper ends by an exception                  | report                                    |

Each is called with a `State`, or a RankAssignment with the table of all ranks. It returns the argument for the next
callback of a `Compose`, or None to pass its own argument on. A plain function will do for any of them.
"""

from __future__ import annotations

from softrun.runtime.groups.abort import Abort, AbortProcessGroups, AbortTransformerEngine
from softrun.runtime.inprocess.call import CallWrapper, RankDiscarded
from softrun.runtime.inprocess.callables.completion import Completion
from softrun.runtime.inprocess.callables.compose import Compose
from softrun.runtime.inprocess.callables.finalize import Finalize, ThreadedFinalize
from softrun.runtime.inprocess.callables.health_check import (
    CudaHealthCheck,
    FaultCounter,
    HealthCheck,
    HealthCheckError,
)
from softrun.runtime.inprocess.callables.initialize import Initialize, RestartAbort, RetryController
from softrun.runtime.inprocess.callables.rank_assignment import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    FillGaps,
    FilterCountGroupedByKey,
    MaxActiveWorldSize,
    RankAssignment,
    RankFilter,
    Seat,
    ShiftRanks,
    settle,
)
from softrun.runtime.inprocess.callables.state import State
from softrun.runtime.inprocess.callables.termination import Terminate
from softrun.runtime.inprocess.nested import (
    NestedRestarterAborted,
    NestedRestarterFinalized,
    NestedRestarterHandlingCompleted,
    NestedRestarterHandlingProcessing,
    NestedRestarterHandlingStarting,
)
from softrun.runtime.inprocess.wrapper import Wrapper
from softrun.runtime.interrupt import RestartRequest

__all__ = [
    "Abort",
    "AbortProcessGroups",
    "AbortTransformerEngine",
    "ActivateAllRanks",
    "ActiveWorldSizeDivisibleBy",
    "CallWrapper",
    "Completion",
    "Compose",
    "CudaHealthCheck",
    "FaultCounter",
    "FillGaps",
    "FilterCountGroupedByKey",
    "Finalize",
    "HealthCheck",
    "HealthCheckError",
    "Initialize",
    "MaxActiveWorldSize",
    "NestedRestarterAborted",
    "NestedRestarterFinalized",
    "NestedRestarterHandlingCompleted",
    "NestedRestarterHandlingProcessing",
    "NestedRestarterHandlingStarting",
    "RankAssignment",
    "RankDiscarded",
    "RankFilter",
    "RestartAbort",
    "RestartRequest",
    "RetryController",
    "Seat",
    "ShiftRanks",
    "State",
    "Terminate",
    "ThreadedFinalize",
    "Wrapper",
    "settle",
]
