"""What a worker imports: what it is told about its world, and the short way to live through a change of it.

`worlds()` is the short way. `get_worker_event`, `get_worker_info` and `on_world_change` are what it is made of, the
first two being the soft-restart RFC's. Importing this package never imports torch.

The map, from the ground up. A room imports from those above it in this list, never from those below:

    events       what is told in either direction
    interrupt    a call in the main thread that a signal can break off
    steplog      which step was completed when
    channel/     the directory of files and the shared page between an agent and one worker, both ends
    groups/      torch's process groups: which exist, and how they are aborted, destroyed and forgotten
    worker       this worker: its place, its events, its progress
    worlds       one pass per world
    inprocess/   the wrapper, which restarts a function in its process; `callables/` is what its user gives to it
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
