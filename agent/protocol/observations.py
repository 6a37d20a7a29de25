"""What goes into the engine. The shells make these; the engine never asks the world anything itself."""

from __future__ import annotations

from dataclasses import dataclass

from softrun.agent.protocol.model import Message, Round
from softrun.runtime.events import WorkerStatus


@dataclass(frozen=True, slots=True)
class StoreReady:
    """The store answers. `hosted`: it lives inside this agent and ends with it."""

    hosted: bool


@dataclass(frozen=True, slots=True)
class RecordSeen:
    """The record in the store; None if there is none yet. Sent once at the start and at every change."""

    round: Round | None


@dataclass(frozen=True, slots=True)
class LeaderBeatSeen:
    """The count of the leader's beats in the store, in answer to ReadLeaderBeat and BeatAsLeader."""

    count: int


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """Until `until`, by this agent's clock, nobody can have been told that its lease has expired; in answer to
    RenewLease, and once at the start. A higher `lease_number` than before: the lease had expired, this is a new one.
    """

    until: float
    lease_number: int
    granted_s: float


@dataclass(frozen=True, slots=True)
class LeasesExpired:
    """(node, lease number): those agents are dead, or have stopped their workers, whatever else they say under it."""

    leases: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class StoreLost:
    """The store will not answer any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The link that was dialled stands."""

    node: str


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A link to or from this node is down. `gone`: its process is certainly gone, too."""

    node: str
    gone: bool


@dataclass(frozen=True, slots=True)
class Heard:
    """A node said something, on a link in either direction."""

    node: str
    message: Message


@dataclass(frozen=True, slots=True)
class WorkerStoreOpened:
    """The worker store that was asked for listens on this port."""

    port: int


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker process ended; negative codes are signals, as in subprocess."""

    local_rank: int
    launch: int
    exitcode: int


@dataclass(frozen=True, slots=True)
class WorkerSaid:
    """A worker's status changed."""

    local_rank: int
    launch: int
    status: WorkerStatus


@dataclass(frozen=True, slots=True)
class ProgressSeen:
    """When a worker made progress last, by this agent's clock, in answer to LookAtProgress."""

    local_rank: int
    launch: int
    at: float
    stopped: bool = False  # by a signal


@dataclass(frozen=True, slots=True)
class StepSeen:
    """The last step that a worker has completed in its world, if it counts them, and how long its last one took, in
    any world, if it is known; in answer to LookAtStep."""

    local_rank: int
    launch: int
    step: int | None
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreUsed:
    """A worker is connected to the worker store that its environment names, at this port; in answer to LookForStore."""

    local_rank: int
    launch: int
    port: int


@dataclass(frozen=True, slots=True)
class Signalled:
    """This agent received a signal that it handles."""

    signum: int


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline of the engine has come."""


Observation = (
    StoreReady
    | RecordSeen
    | LeaderBeatSeen
    | LeaseRenewed
    | LeasesExpired
    | StoreLost
    | LinkUp
    | LinkDown
    | Heard
    | WorkerStoreOpened
    | WorkerExited
    | WorkerSaid
    | ProgressSeen
    | StepSeen
    | StoreUsed
    | Signalled
    | Tick
)
