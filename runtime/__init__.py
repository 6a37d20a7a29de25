"""What a worker imports: what it is told about its world, and the short way to live through a change of it.

`worlds()` is the short way. `get_worker_event`, `get_worker_info` and `on_world_change` are what it is made of, the
first two being the soft-restart RFC's. Importing this package never imports torch.
"""

from __future__ import annotations

from softrun.runtime.channel.channel import ChannelError
from softrun.runtime.events import WorkerEvent, WorkerInfo, WorkerState, WorkerStatus, WorldChangeEvent
from softrun.runtime.worker import get_worker_event, get_worker_info, on_world_change
from softrun.runtime.worlds import World, WorldChanged, worlds

__all__ = [
    "ChannelError",
    "WorkerEvent",
    "WorkerInfo",
    "WorkerState",
    "WorkerStatus",
    "World",
    "WorldChangeEvent",
    "WorldChanged",
    "get_worker_event",
    "get_worker_info",
    "on_world_change",
    "worlds",
]
