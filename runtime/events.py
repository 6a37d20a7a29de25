"""The messages between an agent and a worker: the values that cross the channel.

`WorkerEvent`, `WorkerInfo`, `WorkerState` and `WorldChangeEvent` come from the soft-restart RFC ("Worker(trainer) API
changes"), with its field names. Fields that the RFC does not have are marked as softrun's own. All values are frozen,
so an event never changes after it was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from softrun.runtime.bounds import LARGEST, LARGEST_STEP, LONGEST_TEXT, LONGEST_WAIT_S, MOST_CAUSES, told

MOST_NAMED = 16
"""How many faults of one world are named besides the first."""
MOST_CHARACTERS = 240
RESUME = 75
"""The exit code of what was told to leave, and has: start it again, and it goes on (EX_TEMPFAIL of sysexits.h)."""


_Count = Annotated[int, Field(ge=0, le=LARGEST)]
_Text = Annotated[str, AfterValidator(lambda text: told(text, LONGEST_TEXT))]


class _Value(BaseModel):
    # A newer agent may send fields that an older runtime does not know: they are ignored.
    model_config = ConfigDict(frozen=True, extra="ignore")


class WorldChangeEvent(str, Enum):
    """Why the world changed: nodes or workers joined (SCALE_UP), or left (SCALE_DOWN).

    Source: the soft-restart RFC, "Worker(trainer) API changes".
    """

    SCALE_UP = "SCALE_UP"
    SCALE_DOWN = "SCALE_DOWN"


class WorkerState(str, Enum):
    """What the agent asks of a worker: HEALTHY, work in the given world; PAUSED, leave it and wait for the next.

    Source: the soft-restart RFC, "Worker(trainer) API changes".
    """

    HEALTHY = "HEALTHY"
    PAUSED = "PAUSED"


class WorkerInfo(_Value):
    """One worker's place in one world: its ranks, the sizes, and the address of the world's store.

    Source: the soft-restart RFC, "Worker(trainer) API changes"; `group_rank` and `group_world_size` are softrun's own.
    """

    local_rank: int = Field(ge=0, description="rank among the workers of this node")
    role_rank: int = Field(ge=0, description="rank among the workers of the same role")
    rank: int = Field(ge=0, description="rank among all workers")
    local_world_size: int = Field(ge=1, description="workers of this node that are in this world")
    role_world_size: int = Field(ge=1)
    world_size: int = Field(ge=1)
    master_addr: str = Field(description="host of this world's store; an agent's, never a worker's")
    master_port: int = Field(ge=0, le=65535, description="port of this world's store; another one in every world")
    # softrun's own
    group_rank: int = Field(default=0, ge=0, description="rank of this node among the nodes")
    group_world_size: int = Field(default=1, ge=1, description="number of nodes")

    def get_pg_parameters(self) -> dict[str, Any]:
        """Return the arguments of `torch.distributed.init_process_group` other than `backend`.

        They are `init_method`, `rank` and `world_size`. An agent hosts the store that `init_method` names, a new one in
        each world, so nothing stale can be read from it. Source: the soft-restart RFC, "Description".
        """
        return {
            "init_method": f"tcp://{_in_url(self.master_addr)}:{self.master_port}",
            "rank": self.rank,
            "world_size": self.world_size,
        }


class Interruption(Enum):
    """What ended a world on a rank."""

    EXCEPTION = "EXCEPTION"
    """The function raised it."""
    BASE_EXCEPTION = "BASE_EXCEPTION"
    """The same, but it ends the rank."""
    SOFT_TIMEOUT = "SOFT_TIMEOUT"
    """It made no progress for so long."""
    HARD_TIMEOUT = "HARD_TIMEOUT"
    """The same, and it is ended."""
    TERMINATED = "TERMINATED"
    """Its process or its node is gone, or it was ended, or it has left."""
    UNRESPONSIVE = "UNRESPONSIVE"
    """Its node is silent."""
    MONITOR_PROCESS_EXCEPTION = "MONITOR_PROCESS_EXCEPTION"
    """Never told: no process monitors a rank here."""


class WorkerFault(_Value):
    """A fault of one worker that ends the world for all workers."""

    round: _Count = Field(description="the world in which it happened")
    text: _Text = Field(default="", description="for the log of every worker: whose fault, and the traceback mostly")
    causes: tuple[tuple[_Count, Interruption], ...] = Field(
        default=(), max_length=MOST_CAUSES, description="which ranks had which kind of fault"
    )
    depth: _Count = Field(
        default=0,
        description="of the innermost wrapper that all ranks were in, counted from the outermost, 1; 0 is not known",
    )
    last_call_wait: float = Field(
        default=0,
        ge=0,
        le=LONGEST_WAIT_S,
        description="seconds for the faults of others to be in the same restart",
    )


def joined(faults: Sequence[WorkerFault]) -> WorkerFault:
    """Return the faults of one world as one: the first in full, each of the others in one line."""
    first, *others = faults
    texts = [first.text, *(f"also {headline(other.text)}" for other in others[:MOST_NAMED] if other.text)]
    if len(others) > MOST_NAMED:
        texts.append(f"and {len(others) - MOST_NAMED} more")
    return WorkerFault(
        round=first.round,
        text="\n".join(texts),
        causes=tuple(cause for fault in faults for cause in fault.causes)[:MOST_CAUSES],
        depth=min(fault.depth for fault in faults),
        last_call_wait=max(fault.last_call_wait for fault in faults),
    )


def headline(text: str) -> str:
    """Return a fault's text as one line: what comes before its traceback, and the traceback's last line."""
    lines = text.strip().splitlines() or [""]
    head, _, _ = lines[0].partition(" Traceback")
    return f"{head} {lines[-1]}"[:MOST_CHARACTERS] if len(lines) > 1 else lines[0][:MOST_CHARACTERS]


class Preemption(_Value):
    """The workers leave for good, and their job goes on later: it is told to end, or this node is."""

    reason: _Text = Field(default="", description="who told them, or what did")
    after: int = Field(default=0, ge=0, le=LARGEST_STEP, description="the step after which they leave; 0: at once")
    seconds: float = Field(
        default=0, ge=0, le=LARGEST, description="how long they may take to get there, to save, to end"
    )
    alone: bool = Field(default=False, description="only this node leaves, and the others go on")


class WorkerEvent(_Value):
    """A message from an agent to one worker. Events arrive in the order of `sequence`, and the last one is valid.

    Source: the soft-restart RFC, "Worker(trainer) API changes"; the fields from `fault` on are softrun's own.
    """

    timestamp: int = Field(description="when the agent wrote it, in milliseconds since the epoch")
    worker_info: WorkerInfo = Field(description="of a PAUSED event: the place in the world that is over")
    worker_state: WorkerState
    change_event: WorldChangeEvent | None = Field(
        default=None, description="None when a worker starts, and when the same members form a new world"
    )
    # softrun's own
    fault: WorkerFault | None = Field(
        default=None, description="what ended the last world (PAUSED: the world of this event), if it is known"
    )
    lost: tuple[int, ...] = Field(
        default=(), description="the ranks of the last world, or of this one, that are not in the next, if it is known"
    )
    round: int = Field(default=0, ge=0, description="number of the world that worker_info speaks of; only rises")
    stop_after: int | None = Field(
        default=None, description="HEALTHY in the same world: complete no step after this one before the next event"
    )
    leave_after: int | None = Field(
        default=None, description="the step after which everybody leaves the world before; None: leave it at once"
    )
    preemption: Preemption | None = Field(default=None, description="if the workers of this world leave for good")
    signum: int = Field(
        default=0,
        ge=0,
        description="this process gets this signal, to end, and no world follows; HEALTHY: its world stands until then",
    )
    sequence: int = Field(default=0, ge=0, description="number of this event on this channel; only rises")

    @property
    def interrupts(self) -> bool:
        """Whether the step under way is lost. If the world changes only for newcomers, the step is completed."""
        if self.leave_after is not None:
            return False
        return self.worker_state is not WorkerState.PAUSED or self.change_event is not WorldChangeEvent.SCALE_UP

    def environment(self) -> dict[str, str]:
        """Return the variables that torchrun sets for a worker, so that `init_process_group()` with `env://` works.

        TORCHELASTIC_RESTART_COUNT is the number of worlds before this one. Every member of a world has the same value,
        and torch's env:// rendezvous, which prefixes its keys with it, never reads those of an earlier world.
        LOCAL_RANK is not included: it belongs to the process, not to the world.
        """
        info = self.worker_info
        return {
            "RANK": str(info.rank),
            "ROLE_RANK": str(info.role_rank),
            "GROUP_RANK": str(info.group_rank),
            "WORLD_SIZE": str(info.world_size),
            "LOCAL_WORLD_SIZE": str(info.local_world_size),
            "ROLE_WORLD_SIZE": str(info.role_world_size),
            "GROUP_WORLD_SIZE": str(info.group_world_size),
            "MASTER_ADDR": info.master_addr,
            "MASTER_PORT": str(info.master_port),
            "TORCHELASTIC_RESTART_COUNT": str(max(self.round - 1, 0)),
        }


class ProgressLimits(_Value):
    """What happens to a worker that makes no progress, and after how many seconds; None means never."""

    soft: float | None = Field(default=None, gt=0, description="seconds until all restart in their processes")
    hard: float | None = Field(default=None, gt=0, description="seconds until this worker is ended")
    grace: float | None = Field(default=None, ge=0, description="seconds from SIGTERM to SIGKILL; None: the agent's")
    barrier: float | None = Field(
        default=None, gt=0, description="seconds until it gives up by itself if peers have not come; None: it does not"
    )


class WorkerStatus(_Value):
    """What a worker tells its agent. Each status replaces the one before: the agent sees the newest, not every one."""

    ready: bool = Field(default=False, description="it has asked for a world at least once")
    applied: _Count = Field(default=0, description="sequence of the last event it has seen")
    broken_round: _Count | None = Field(default=None, description="the world that it found broken and has left")
    fault: WorkerFault | None = Field(default=None, description="its last fault")
    counts: _Count = Field(default=0, description="the last world in which it has completed a step that it counts")
    idle: _Count = Field(default=0, description="the last world in which it takes no step, but waits for the next")
    worked: _Count = Field(
        default=0,
        description="the last world in which a step, a ping or a collective has shown that the ranks work together",
    )
    called: _Count = Field(
        default=0, description="the world in which its peers wait for it at the end of a call, even if it exits 0"
    )
    ends: bool = Field(default=False, description="its work is done, or its interpreter is ending: it is left to end")
    through: bool = Field(default=False, description="its work is done")
    final: bool = Field(default=False, description="it leaves for good, as a failure that no restart would mend")
    gone: bool = Field(default=False, description="it takes no part in any world any more, whatever it still does")
    unmet: bool = Field(default=False, description="it is gone because its peers did not come: no rank does the work")
    heeds: bool = Field(default=False, description="told to leave for good, it stops after an agreed step, and saves")
    left: bool = Field(default=False, description="it has left its world for good as it was told to, and saves or ends")
    saved: bool = Field(default=False, description="its interpreter ends after that, and nothing had gone wrong before")
    limits: ProgressLimits | None = Field(default=None, description="how it wants to be watched; None: it cannot be")


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
