"""Restarting a function in its process, and the callbacks around it; from NVIDIA's guide to in-process restart.

| family         | called                                                 | may                                       |
|----------------|--------------------------------------------------------|-------------------------------------------|
| RankAssignment | between two iterations                                 | say who is which, active, or leaves       |
| Initialize     | at the start of every iteration                        | refuse it; an Exception leads to another  |
| Abort          | at a fault, in a thread, mostly while it still runs    | get the function out of what it waits for |
| Finalize       | after a fault, once the process groups are gone        | clean up; a failure ends this rank        |
| HealthCheck    | after Finalize, and before an iteration                | find this rank unfit, which ends it       |
| Completion     | when the function has returned                         | report                                    |
| Terminate      | when the wrapper ends by an exception                  | report                                    |

Each is called with a `FrozenState`, or a RankAssignment with a `RankAssignmentCtx`. It returns the argument for the
next callback of a `Compose`, or None to pass its own argument on. A plain function will do for any of them; one that
assigns ranks gets the table of all, see `softrun.runtime.inprocess.rank_assignment`.

The modules have the names that they have in nvidia_resiliency_ext.inprocess; `calls` holds what runs between them.
"""

from __future__ import annotations

from softrun.runtime.inprocess.abort import (
    Abort,
    AbortPersistentCheckpointProcesses,
    AbortProcessGroups,
    AbortTorchDistributed,
    AbortTransformerEngine,
)
from softrun.runtime.inprocess.attribution import Interruption, InterruptionRecord, format_interruption_records
from softrun.runtime.inprocess.completion import Completion
from softrun.runtime.inprocess.compose import Compose
from softrun.runtime.inprocess.exception import (
    BarrierError,
    BarrierOverflow,
    BarrierTimeout,
    HealthCheckError,
    InternalError,
    RestartAbort,
    RestartError,
)
from softrun.runtime.inprocess.finalize import Finalize, ThreadedFinalize
from softrun.runtime.inprocess.health_check import (
    ChainedGPUHealthCheck,
    ChainedNicHealthCheck,
    ChainedNVLHealthCheck,
    CudaHealthCheck,
    FaultCounter,
    FaultCounterExceeded,
    HealthCheck,
)
from softrun.runtime.inprocess.initialize import Initialize, RetryController
from softrun.runtime.inprocess.monitor_thread import RankShouldRestart
from softrun.runtime.inprocess.nested_restarter import (
    NestedRestarterAborted,
    NestedRestarterFinalized,
    NestedRestarterHandlingCompleted,
    NestedRestarterHandlingProcessing,
    NestedRestarterHandlingStarting,
)
from softrun.runtime.inprocess.progress_watchdog import ProgressWatchdog
from softrun.runtime.inprocess.rank_assignment import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    FillGaps,
    FilterCountGroupedByKey,
    Layer,
    LayerFlag,
    MaxActiveWorldSize,
    RankAssignment,
    RankAssignmentCtx,
    RankDiscarded,
    RankFilter,
    Seat,
    SeatAssignment,
    ShiftRanks,
    Tree,
    settle,
)
from softrun.runtime.inprocess.state import FrozenState, Mode, State
from softrun.runtime.inprocess.store import StoreMixin
from softrun.runtime.inprocess.terminate import Terminate
from softrun.runtime.inprocess.wrap import CallWrapper, Wrapper
from softrun.runtime.interrupt import RestartRequest

__all__ = [
    "Abort",
    "AbortPersistentCheckpointProcesses",
    "AbortProcessGroups",
    "AbortTorchDistributed",
    "AbortTransformerEngine",
    "ActivateAllRanks",
    "ActiveWorldSizeDivisibleBy",
    "BarrierError",
    "BarrierOverflow",
    "BarrierTimeout",
    "CallWrapper",
    "ChainedGPUHealthCheck",
    "ChainedNVLHealthCheck",
    "ChainedNicHealthCheck",
    "Completion",
    "Compose",
    "CudaHealthCheck",
    "FaultCounter",
    "FaultCounterExceeded",
    "FillGaps",
    "FilterCountGroupedByKey",
    "Finalize",
    "FrozenState",
    "HealthCheck",
    "HealthCheckError",
    "Initialize",
    "InternalError",
    "Interruption",
    "InterruptionRecord",
    "Layer",
    "LayerFlag",
    "MaxActiveWorldSize",
    "Mode",
    "NestedRestarterAborted",
    "NestedRestarterFinalized",
    "NestedRestarterHandlingCompleted",
    "NestedRestarterHandlingProcessing",
    "NestedRestarterHandlingStarting",
    "ProgressWatchdog",
    "RankAssignment",
    "RankAssignmentCtx",
    "RankDiscarded",
    "RankFilter",
    "RankShouldRestart",
    "RestartAbort",
    "RestartError",
    "RestartRequest",
    "RetryController",
    "Seat",
    "SeatAssignment",
    "ShiftRanks",
    "State",
    "StoreMixin",
    "Terminate",
    "ThreadedFinalize",
    "Tree",
    "Wrapper",
    "format_interruption_records",
    "settle",
]
