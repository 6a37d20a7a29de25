"""What a worker imports: its place in the world, and the short way to train through changes of it.

`worlds()` is the short way. It is built from `get_worker_event` and `get_worker_info`, which are the soft-restart
RFC's, and `on_world_change`. Importing this package never imports torch.

The map, from the ground up. A room imports from those above it in this list, never from those below:

    events       the messages between agent and worker
    interrupt    running a call in the main thread that can be interrupted
    steplog      the log of completed steps
    channel/     the directory of files and the shared page between an agent and one worker, both ends
    groups/      torch's process groups: which exist, and how they are aborted, destroyed and forgotten
    worker       this worker: its place, its events, its progress
    worlds       one pass per world
    inprocess/   the wrapper, which restarts a function in its process, and its callbacks; `calls/` runs them
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
