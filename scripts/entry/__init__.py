"""softrun: an elastic launcher for PyTorch training that keeps healthy workers alive when others die.

From programs: `launch_agent(LaunchConfig(...), entrypoint, args)`. In trainers: `worlds()`, or the soft-restart RFC's
`get_worker_event()` and `get_worker_info()`. Every name is imported when it is first used: `import softrun` is cheap,
and only what launches imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from softrun.agent.errors import PreemptedError
    from softrun.agent.launch import LaunchConfig, RestartPolicy, elastic_launch, launch_agent
    from softrun.agent.local_agent import LocalElasticAgent
    from softrun.agent.torch_elastic.handler import get_rendezvous_handler
    from softrun.policies import RestartPolicyStrategy
    from softrun.runtime import (
        RESUME,
        CallMismatch,
        CheckpointTransport,
        ElasticSampler,
        Evicted,
        Healing,
        Leave,
        Live,
        LiveWorld,
        Member,
        PeerFailed,
        RandomNumbers,
        Share,
        SnapshotError,
        State,
        StateLostError,
        WorkerEvent,
        WorkerInfo,
        WorkerState,
        World,
        WorldChanged,
        WorldChangeEvent,
        get_worker_event,
        get_worker_info,
        live_barrier,
        live_workers,
        on_leave,
        on_world_change,
        reached_preemption_sync_point,
        worlds,
    )
    from softrun.runtime.inprocess import CallWrapper, Wrapper

_HOME = {
    "CallMismatch": "softrun.runtime",
    "CallWrapper": "softrun.runtime.inprocess",
    "CheckpointTransport": "softrun.runtime",
    "LaunchConfig": "softrun.agent.launch",
    "LocalElasticAgent": "softrun.agent.local_agent",
    "ElasticSampler": "softrun.runtime",
    "Evicted": "softrun.runtime",
    "Healing": "softrun.runtime",
    "Leave": "softrun.runtime",
    "Live": "softrun.runtime",
    "LiveWorld": "softrun.runtime",
    "Member": "softrun.runtime",
    "PeerFailed": "softrun.runtime",
    "PreemptedError": "softrun.agent.errors",
    "RESUME": "softrun.runtime",
    "RandomNumbers": "softrun.runtime",
    "RestartPolicy": "softrun.agent.launch",
    "elastic_launch": "softrun.agent.launch",
    "get_rendezvous_handler": "softrun.agent.torch_elastic.handler",
    "launch_agent": "softrun.agent.launch",
    "RestartPolicyStrategy": "softrun.policies",
    "Share": "softrun.runtime",
    "SnapshotError": "softrun.runtime",
    "State": "softrun.runtime",
    "StateLostError": "softrun.runtime",
    "WorkerEvent": "softrun.runtime",
    "WorkerInfo": "softrun.runtime",
    "WorkerState": "softrun.runtime",
    "Wrapper": "softrun.runtime.inprocess",
    "World": "softrun.runtime",
    "WorldChangeEvent": "softrun.runtime",
    "WorldChanged": "softrun.runtime",
    "get_worker_event": "softrun.runtime",
    "get_worker_info": "softrun.runtime",
    "live_barrier": "softrun.runtime",
    "live_workers": "softrun.runtime",
    "on_leave": "softrun.runtime",
    "on_world_change": "softrun.runtime",
    "reached_preemption_sync_point": "softrun.runtime",
    "worlds": "softrun.runtime",
}

__all__ = [
    "RESUME",
    "CallMismatch",
    "CallWrapper",
    "CheckpointTransport",
    "ElasticSampler",
    "Evicted",
    "Healing",
    "LaunchConfig",
    "Leave",
    "Live",
    "LiveWorld",
    "LocalElasticAgent",
    "Member",
    "PeerFailed",
    "PreemptedError",
    "RandomNumbers",
    "RestartPolicy",
    "RestartPolicyStrategy",
    "Share",
    "SnapshotError",
    "State",
    "StateLostError",
    "WorkerEvent",
    "WorkerInfo",
    "WorkerState",
    "World",
    "WorldChangeEvent",
    "WorldChanged",
    "Wrapper",
    "elastic_launch",
    "get_rendezvous_handler",
    "get_worker_event",
    "get_worker_info",
    "launch_agent",
    "live_barrier",
    "live_workers",
    "on_leave",
    "on_world_change",
    "reached_preemption_sync_point",
    "worlds",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":  # the version is written in pyproject.toml alone
        return import_module("importlib.metadata").version("softrun")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
