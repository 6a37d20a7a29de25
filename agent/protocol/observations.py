"""What goes into the engine. The shells make these; the engine itself never asks the world anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from softrun.agent.protocol.model import Address, Message, Round
from softrun.runtime.calls import Call
from softrun.runtime.events import WorkerStatus


@dataclass(frozen=True, slots=True)
class RecordSeen:
    """The record in the store, or None if there is none yet: at the start, at every change, and after Propose."""

    round: Round | None


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """This agent's lease was renewed, in answer to RenewLease, or granted at the start.

    Before `until`, by this agent's clock, nobody can have been told that the lease has expired; it was granted for
    `granted_s` seconds. A higher `lease_number` than before: the old lease had expired, and this is a new one.
    """

    until: float
    lease_number: int
    granted_s: float


@dataclass(frozen=True, slots=True)
class LeasesExpired:
    """These leases, as (node, lease number), have expired.

    Their agents are dead or have stopped their workers, whatever they may still say under these leases.
    """

    leases: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class StoreLost:
    """The store will not answer again."""

    reason: str


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The link that this agent dialled to `node` is up."""

    node: str


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A link to or from this node is down, or could not be made.

    `refused`: nobody listens there, or somebody else, so it may have ended. If that is certain, its `LastWords` were
    heard before.
    """

    node: str
    refused: bool


@dataclass(frozen=True, slots=True)
class Listening:
    """This agent listens at `endpoint` now, in answer to Seek: the address is this machine's, and nobody had it."""

    endpoint: Address


@dataclass(frozen=True, slots=True)
class Found:
    """An agent of this job listens at `endpoint`, in answer to Seek, and there is a link to it that takes messages."""

    endpoint: Address
    node: str


@dataclass(frozen=True, slots=True)
class NotFound:
    """No agent of this job answers at `endpoint`, in answer to Seek.

    `stranger`: what else has the port, if anything. `refused`: the host answers, and nothing listens there. `doubtful`:
    one may be there all the same, or come: something has accepted and says nothing, even if it then hangs up, or an
    agent has another token or release.
    """

    endpoint: Address
    stranger: str = ""
    refused: bool = False
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """A message from a node arrived, on a link that either side dialled."""

    node: str
    message: Message


@dataclass(frozen=True, slots=True)
class WorkerStoreOpened:
    """The worker store that OpenWorkerStore asked for listens on this port."""

    port: int


@dataclass(frozen=True, slots=True)
class WorkerReturned:
    """A worker's function has returned. Its process lives until it is released."""

    local_rank: int
    launch: int


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker process ended. A negative exit code is a signal, as in `subprocess`."""

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
    """When a worker last made progress, by this agent's clock in seconds; in answer to LookAtProgress."""

    local_rank: int
    launch: int
    at: float
    stopped: bool = False  # a signal has stopped its process


@dataclass(frozen=True, slots=True)
class StepSeen:
    """The last step that a worker has completed in its world, in answer to LookAtStep.

    `step` is None if the worker counts no steps or has completed none there yet. `step_s` is how many seconds its last
    step took, in any world; 0 if that is not known.
    """

    local_rank: int
    launch: int
    step: int | None
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreUsed:
    """A worker is connected to the worker store that its environment names, on this port; in answer to LookForStore."""

    local_rank: int
    launch: int
    port: int


class Called(NamedTuple):
    """A worker has made a call of live_workers or live_barrier, and waits for the reply."""

    local_rank: int
    launch: int
    call: Call


@dataclass(frozen=True, slots=True)
class Signalled:
    """This agent received a signal that it handles."""

    signum: int


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline of the engine has passed."""


Observation = (
    RecordSeen
    | LeaseRenewed
    | LeasesExpired
    | StoreLost
    | LinkUp
    | LinkDown
    | Listening
    | Found
    | NotFound
    | Heard
    | WorkerStoreOpened
    | WorkerReturned
    | WorkerExited
    | WorkerSaid
    | ProgressSeen
    | StepSeen
    | StoreUsed
    | Called
    | Signalled
    | Tick
)
