"""What comes out of the engine. The driver carries out the effects in the order given, and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from softrun.agent.protocol.model import Address, Member, Message, Round
from softrun.runtime.calls import Reply
from softrun.runtime.events import Preemption, WorkerFault, WorkerInfo, WorkerState, WorldChangeEvent


@dataclass(frozen=True, slots=True)
class Propose:
    """Compare-and-swap the record in the store from `round.version - 1`. RecordSeen follows with what stands then.

    `begins`: with it a job begins, or one whose members are all gone, so nobody has a say but for its maker.
    """

    round: Round
    begins: bool = False


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Renew this agent's lease in the store. LeaseRenewed follows.

    Only the engine asks for a renewal, so the lease of an agent whose loop is stuck expires.
    """


@dataclass(frozen=True, slots=True)
class EndLease:
    """End a lease of another node in the store, if this agent's own lease `by` still stands, and the record of this
    `version`. LeasesExpired follows."""

    node: str
    lease_number: int
    by: int
    version: int


@dataclass(frozen=True, slots=True)
class OpenWorkerStore:
    """Open a new worker store on a free port. WorkerStoreOpened follows."""


@dataclass(frozen=True, slots=True)
class CloseWorkerStore:
    """Close the worker store at `port`: its world is over. This frees workers that still wait in it."""

    port: int


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to the agent of this member. LinkUp or LinkDown follows."""

    member: Member


@dataclass(frozen=True, slots=True)
class Seek:
    """Look for the job at `endpoint`. Listening, Found or NotFound follows, within `give_up_s` seconds.

    `listens`: listen there if the address is this machine's and nobody has it.
    """

    endpoint: Address
    give_up_s: float
    listens: bool = True


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the link that this agent dialled to `node`. No observation follows."""

    node: str


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message on the link to `node`, whichever side dialled it; None: on every link that others dialled."""

    node: str | None
    message: Message


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a world ended, as far as it is known: a fault of its workers, and which of its ranks are not in the next."""

    fault: WorkerFault | None = None
    lost: tuple[int, ...] = ()


UNKNOWN = Ending()


@dataclass(frozen=True, slots=True)
class Tell:
    """Write an event into the worker's channel.

    `launch` numbers the processes that were started for a local rank. The fields from `state` on become those of
    `softrun.runtime.events.WorkerEvent`.
    """

    local_rank: int
    launch: int
    state: WorkerState
    change: WorldChangeEvent | None
    info: WorkerInfo
    round: int
    fault: WorkerFault | None = None
    lost: tuple[int, ...] = ()
    stop_after: int | None = None
    leave_after: int | None = None
    preemption: Preemption | None = None
    signum: int = 0


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start these workers: for each, make its channel, write its first event (`tell`), then start its process."""

    tell: tuple[Tell, ...]
    restarts_left: int
    """How many more failures of its own the node may have."""


@dataclass(frozen=True, slots=True)
class SignalWorker:
    """Send a signal to the worker and its children. The worker may have exited meanwhile."""

    local_rank: int
    launch: int
    signum: int


@dataclass(frozen=True, slots=True)
class Release:
    """Let a worker end whose function has returned. It may have exited meanwhile."""

    local_rank: int
    launch: int


@dataclass(frozen=True, slots=True)
class LookAtProgress:
    """Read when the worker last made progress. ProgressSeen follows if that is known."""

    local_rank: int
    launch: int


@dataclass(frozen=True, slots=True)
class LookAtStep:
    """Read the last step that the worker has completed. StepSeen follows.

    Every event told to the worker before must be where the worker reads it.
    """

    local_rank: int
    launch: int


@dataclass(frozen=True, slots=True)
class LookForStore:
    """Check whether a worker that has asked for no world is connected to the worker store that its environment names.

    StoreUsed follows if it is.
    """

    local_rank: int
    launch: int


@dataclass(frozen=True, slots=True)
class ShowStacks:
    """Have the worker write its Python stacks to its log, if it can. A stopped worker is continued for that."""

    local_rank: int
    launch: int


@dataclass(frozen=True, slots=True)
class Allow:
    """Move the allowance of all workers, including those started later.

    Without another sign from the agent they complete no further step after `hold_at`, and leave their world at
    `leave_at`. Times are the engine's, in seconds; 0 is no bound.
    """

    hold_at: float
    leave_at: float


class Caller(NamedTuple):
    """A worker, and which of its calls is answered."""

    local_rank: int
    launch: int
    number: int


class Answered(NamedTuple):
    """Give these workers one reply. A worker that has ended is told nothing."""

    callers: tuple[Caller, ...]
    reply: Reply


class Outcome(Enum):
    """Why an agent has ended."""

    SUCCEEDED = "SUCCEEDED"
    WORKERS_FAILED = "WORKERS_FAILED"  # on this node, for good
    SIGNALLED = "SIGNALLED"
    PREEMPTED = "PREEMPTED"  # told to end, and to be started again later
    RENDEZVOUS_FAILED = "RENDEZVOUS_FAILED"  # too few nodes joined in time
    JOB_OVER = "JOB_OVER"  # before this agent joined it
    STORE_LOST = "STORE_LOST"
    JOB_FAILED = "JOB_FAILED"  # on all nodes
    USAGE = "USAGE"  # the job runs with other flags


@dataclass(frozen=True, slots=True)
class Failure:
    """One worker that failed. `rank` is its rank in the world in which it failed; a negative `exitcode` is a signal."""

    rank: int
    local_rank: int
    launch: int
    exitcode: int


@dataclass(frozen=True, slots=True)
class Result:
    """How the job ended for this agent, why, and the failures of its workers.

    `signum` is the signal that ended it, if one did.
    """

    outcome: Outcome
    reason: str = ""
    failures: tuple[Failure, ...] = ()
    signum: int = 0
    ranks: tuple[tuple[int, int], ...] = field(default=())  # (local rank, last rank) of each worker that had a rank


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log: what was decided, and why. `detail`: logged at level DEBUG. `error`: at level ERROR, because
    it must not happen."""

    text: str
    warning: bool = False
    detail: bool = False
    error: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The agent is done, and all its workers have ended. The engine's last effect."""

    result: Result


Effect = (
    Propose
    | RenewLease
    | EndLease
    | OpenWorkerStore
    | CloseWorkerStore
    | Dial
    | Seek
    | HangUp
    | Say
    | Tell
    | Spawn
    | SignalWorker
    | Release
    | LookAtProgress
    | LookAtStep
    | LookForStore
    | ShowStacks
    | Allow
    | Answered
    | Note
    | End
)


class Outbox(list[Effect]):
    """The effects of one observation, in the order in which the driver must carry them out."""

    def note(self, text: str, warning: bool = False) -> None:
        """Append a line for the log."""
        self.append(Note(text, warning))
