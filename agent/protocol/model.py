"""The values of the agent: nodes, workers, rounds. All are frozen; they cross every boundary inside the agent.

A **node** is one agent's place in the job. One life of a node is an **incarnation**: a node whose workers were started
anew, or that was declared dead and came back, is a new incarnation and counts as a newcomer. A **member** is a node as
the rendezvous sees it. A **round** is one agreed world.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from softrun.runtime.events import WorkerFault


@dataclass(frozen=True, slots=True, order=True)
class Worker:
    """One life of one worker process of a node."""

    local_rank: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Member:
    """A node as the rendezvous sees it."""

    node: str
    incarnation: int
    host: str  # that workers and agents on other nodes can reach
    port: int  # where this agent listens for the links of others
    role: str
    workers: tuple[Worker, ...]  # in rank order
    lease_number: int = 0  # which of its leases this agent has, where the store has leases
    preferred_rank: int = 0  # its wanted place among the nodes; nodes with the same one keep the order of their arrival

    @property
    def life(self) -> tuple[str, int]:
        """What tells this life of the node from those before it."""
        return (self.node, self.incarnation)


class NodeIntent(Enum):
    """What a node wants of the job."""

    READY = "READY"  # to be in the world
    AWAY = "AWAY"  # to be left out for now: its workers are being restarted
    FINISHED = "FINISHED"  # nothing more: all its workers have exited 0
    LEFT = "LEFT"  # to be left out for good
    FAILED = "FAILED"  # the job to end, because of its failure


BarrierRequest = tuple[int, int]
"""Names a hold: the version of the record in whose world workers are to wait, and how often that was asked before."""
NO_REQUEST: BarrierRequest = (0, 0)


@dataclass(frozen=True, slots=True)
class BarrierAnswer:
    """The workers of a node wait, as `asked`: one after step `first`, all after step `last` at the latest; 0: none of
    them counts. `all`: nor is there one that does not count, or not yet. A step takes them `step_s`, if it is known."""

    request: BarrierRequest
    first: int
    last: int
    all: bool
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a node says of itself, to its leader and, as the leader, to its followers. The newest one holds."""

    member: Member
    intent: NodeIntent
    done: tuple[int, ...] = ()  # local ranks that have exited 0: never part of a later world
    broken_round: int = 0  # a world that one of its workers found broken; 0 is none
    reason: str = ""  # of FAILED
    sequence: int = 0  # of this node's reports; only rises, so that one that took another link is not believed late
    fault: WorkerFault | None = None  # the last that befell one of its workers
    missed_round: int = 0  # a world in which one of its workers has not been because its work was done
    through: int = 0  # the last world in which its workers worked, if one has ended because its work was done; else 0
    stuck: bool = False  # one of its workers has not left a world that the others have left, and may come back
    since: int = 0  # the first world from which on one of its workers has been in each; 0: the others were there alone
    leaving: bool = False  # it wants out, and works until the others can do without it
    never_came: int = 0  # a world for which one of its workers never asked, and has exited 0
    asks: bool = False  # its workers ask for their worlds; by itself no news, which nobody is sent
    yields: int = 0  # the version of a record in whose next world it cannot be, so that others lead first; 0: of none
    barrier_answer: BarrierAnswer | None = (
        None  # after which step its workers wait, because the leader has asked for it
    )
    # Of a leader only:
    barrier_request: BarrierRequest = NO_REQUEST  # the workers are to wait
    release_version: int = 0  # the version of the record in whose world they are to go on
    expels_leavers: bool = False  # members that leave must not wait for the others


@dataclass(frozen=True, slots=True)
class Beat:
    """Proof of life, when there is nothing else to say."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first report on a link that was dialled; it is answered with a report."""

    report: Report


Message = Report | Hello | Beat


@dataclass(frozen=True, slots=True)
class Address:
    """Of a listener; `host` is a name or an address that the other nodes can reach."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What every agent of a job must have been started with."""

    min_nodes: int
    max_nodes: int
    restart_policy: str
    worker_failure: str
    named_store: bool = False  # the workers of the first world meet where the user has said


class Phase(Enum):
    """Of a round."""

    OPEN = "OPEN"  # too few members for a world; their workers, if any, stay paused
    SEALED = "SEALED"  # a world
    CLOSED = "CLOSED"  # the job is over


@dataclass(frozen=True, slots=True)
class Round:
    """The one record that the agents share. It changes only by compare-and-swap from `version` to `version + 1`."""

    version: int
    number: int  # of the last world that was sealed; 0 before the first
    phase: Phase
    members: tuple[Member, ...]  # of the world, in rank order; of an OPEN round: the members that keep their place
    settings: JobSettings
    worker_store: Address | None = None  # of the world, by the agent that sealed it; None: where the user has said
    lost: tuple[str, ...] = ()  # nodes judged dead by the step that made this version
    finishing: bool = False  # somebody has finished: nobody new is admitted
    outcome: str = ""  # of CLOSED: empty after success, else why the job failed
    fault: WorkerFault | None = None  # which ended the world before this one
    leave_after: int = 0  # the step after which all leave the world before this one; 0: at once
    stepless: int = 0  # how many worlds before this one, in a row, ended before anybody had completed a step in them

    def member(self, node: str, incarnation: int) -> Member | None:
        """This life of the node, if it is part of this round."""
        return next((m for m in self.members if m.node == node and m.incarnation == incarnation), None)
