"""What comes out of the engine. The driver carries effects out in the order given, and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from softrun.agent.protocol.model import Member, Message, Round
from softrun.runtime.events import WorkerFault, WorkerInfo, WorkerState, WorldChangeEvent


@dataclass(frozen=True, slots=True)
class Propose:
    """Compare-and-swap the record from `round.version - 1`. Whatever then stands there comes back as RecordSeen."""

    round: Round


@dataclass(frozen=True, slots=True)
class BeatAsLeader:
    """Raise the leader's count in the store, for newcomers that cannot reach the leader; answer with LeaderBeatSeen."""


@dataclass(frozen=True, slots=True)
class ReadLeaderBeat:
    """Answer with LeaderBeatSeen."""


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Renew this agent's lease in the store; answer with LeaseRenewed. The engine asks, so a loop that is stuck lets
    the lease expire."""


@dataclass(frozen=True, slots=True)
class OpenWorkerStore:
    """Open a fresh worker store on a free port; answer with WorkerStoreOpened."""


@dataclass(frozen=True, slots=True)
class CloseWorkerStore:
    """The world that used it is over. Closing it frees workers that still wait in it."""

    port: int


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to the agent of this member; answer with LinkUp or LinkDown."""

    member: Member


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the link that was dialled to this node, without an answer."""

    node: str


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message: on the link to `node`, whichever end dialled it, or on every link that others dialled (None)."""

    node: str | None
    message: Message


@dataclass(frozen=True, slots=True)
class Tell:
    """Write an event into the worker's channel. `launch` counts the processes that were started for a local rank."""

    local_rank: int
    launch: int
    state: WorkerState
    change: WorldChangeEvent | None
    info: WorkerInfo
    round: int
    fault: WorkerFault | None = None
    stop_after: int | None = None
    leave_after: int | None = None


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start these workers: make each one's channel, write its first event (`tell`), start its process."""

    tell: tuple[Tell, ...]
    restarts_left: int
    """How many more failures of its own this node may have."""


@dataclass(frozen=True, slots=True)
class SignalWorker:
    """Send a signal to the worker and its children. It may have exited meanwhile."""

    local_rank: int
    launch: int
    signum: int


@dataclass(frozen=True, slots=True)
class LookAtProgress:
    """Answer with ProgressSeen."""

    local_rank: int
    launch: int


@dataclass(frozen=True, slots=True)
class LookAtStep:
    """Answer with StepSeen. What the worker was told before must already be where it reads it."""

    local_rank: int
    launch: int


@dataclass(frozen=True, slots=True)
class LookForStore:
    """Look whether the worker, which has asked for no world, is connected to the worker store that its environment
    names; answer with StoreUsed if it is."""

    local_rank: int
    launch: int


@dataclass(frozen=True, slots=True)
class ShowStacks:
    """Have the worker write its Python stacks into its log, if it can; a stopped one is continued for that."""

    local_rank: int
    launch: int


@dataclass(frozen=True, slots=True)
class Allow:
    """Let the workers, those to come as well, work until `hold_at` without another word, and be in their world until
    `leave_at`; 0 for no bound."""

    hold_at: float
    leave_at: float


class Outcome(Enum):
    """Why an agent has ended."""

    SUCCEEDED = "SUCCEEDED"
    WORKERS_FAILED = "WORKERS_FAILED"
    SIGNALLED = "SIGNALLED"
    RENDEZVOUS_FAILED = "RENDEZVOUS_FAILED"
    JOB_OVER = "JOB_OVER"
    STORE_LOST = "STORE_LOST"
    JOB_FAILED = "JOB_FAILED"
    USAGE = "USAGE"


@dataclass(frozen=True, slots=True)
class Failure:
    """One worker that failed, by its place in the world in which it failed."""

    rank: int
    local_rank: int
    launch: int
    exitcode: int


@dataclass(frozen=True, slots=True)
class Result:
    """How it ended for this agent."""

    outcome: Outcome
    reason: str = ""
    failures: tuple[Failure, ...] = ()
    signum: int = 0
    ranks: tuple[tuple[int, int], ...] = field(default=())  # (local rank, last global rank) of every worker


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log: what was decided and why. `detail`: of interest only to who looks closely."""

    text: str
    warning: bool = False
    detail: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The agent is done: every worker has ended. The last effect ever."""

    result: Result


Effect = (
    Propose
    | BeatAsLeader
    | ReadLeaderBeat
    | RenewLease
    | OpenWorkerStore
    | CloseWorkerStore
    | Dial
    | HangUp
    | Say
    | Tell
    | Spawn
    | SignalWorker
    | LookAtProgress
    | LookAtStep
    | LookForStore
    | ShowStacks
    | Allow
    | Note
    | End
)


class Outbox(list[Effect]):
    """The effects of one observation, in the order in which they are to be carried out."""

    def note(self, text: str, warning: bool = False) -> None:
        """A line for the log."""
        self.append(Note(text, warning))
