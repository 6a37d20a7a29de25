"""What a worker imports: its place in the world, and the short way to train through changes of it.

`worlds()` is the short way. It is built from `get_worker_event` and `get_worker_info`, which are the soft-restart
RFC's, and `on_world_change`. Importing this package never imports torch.

The map, from the ground up. A room imports from those above it in this list, never from those below:

    clock        the one clock of agents and workers
    bounds       how large, how long and of what kind is what they tell each other
    events       the messages between agent and worker
    calls        what they say to each other about live_workers
    steplog      the log of completed steps
    channel/     the directory of files and the shared page between an agent and one worker, both ends
    interrupt    running a call in the main thread that can be interrupted
    groups/      torch's process groups: which exist, and how they are aborted, destroyed and forgotten
    nccl         errors of NCCL, which are left to the agents, or end this process
    preemption   leaving for good, to go on later
    worker       this worker: its place, its events, its progress
    share        a rank's part of a global batch
    sampler      which samples a rank takes, each once
    worlds       one pass per world
    live/        blocks of work that succeed on all workers, or raise on all
    snapshots/   what is kept of a training in memory that outlives its workers, and how a worker reaches it
    state/       what a training has, and how ranks that lack some of it are healed
    inprocess/   the wrapper, which restarts a function in its process, and its callbacks; `calls/` runs them
    integrations/  libraries with a training loop, or a process group, of their own
"""

from __future__ import annotations

from softrun.runtime.channel.channel import ChannelError
from softrun.runtime.events import RESUME, WorkerEvent, WorkerInfo, WorkerState, WorkerStatus, WorldChangeEvent
from softrun.runtime.live.blocks import live_barrier, live_workers
from softrun.runtime.live.errors import CallMismatch, Evicted, PeerFailed
from softrun.runtime.live.members import Live, Member
from softrun.runtime.live.world import LiveWorld
from softrun.runtime.preemption import Leave
from softrun.runtime.sampler import ElasticSampler
from softrun.runtime.share import Share
from softrun.runtime.snapshots.keeper import SnapshotError
from softrun.runtime.state.healing import Healing
from softrun.runtime.state.plan import StateLostError
from softrun.runtime.state.random_numbers import RandomNumbers
from softrun.runtime.state.state import State
from softrun.runtime.state.transport import CheckpointTransport
from softrun.runtime.worker import (
    get_worker_event,
    get_worker_info,
    on_leave,
    on_world_change,
    reached_preemption_sync_point,
)
from softrun.runtime.worlds import World, WorldChanged, worlds

__all__ = [
    "RESUME",
    "CallMismatch",
    "ChannelError",
    "CheckpointTransport",
    "ElasticSampler",
    "Evicted",
    "Healing",
    "Leave",
    "Live",
    "LiveWorld",
    "Member",
    "PeerFailed",
    "RandomNumbers",
    "Share",
    "SnapshotError",
    "State",
    "StateLostError",
    "WorkerEvent",
    "WorkerInfo",
    "WorkerState",
    "WorkerStatus",
    "World",
    "WorldChangeEvent",
    "WorldChanged",
    "get_worker_event",
    "get_worker_info",
    "live_barrier",
    "live_workers",
    "on_leave",
    "on_world_change",
    "reached_preemption_sync_point",
    "worlds",
]
