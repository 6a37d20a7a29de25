"""The values of the agent: nodes, workers, rounds. All are frozen, and cross every boundary inside the agent.

A **node** is one agent's place in the job. One life of a node is an **incarnation**: a node whose workers were started
again, or that was taken for dead and came back, is a new incarnation and counts as a newcomer. A **member** is a node
as the rendezvous sees it. A **round** is one agreed world.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from softrun.agent.protocol.live import Calls, Verdict
from softrun.runtime.events import Preemption, WorkerFault


@dataclass(frozen=True, slots=True, order=True)
class Worker:
    """One incarnation of one worker of a node."""

    local_rank: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Member:
    """A node as the rendezvous sees it."""

    node: str
    incarnation: int
    host: str  # a name or address that workers and agents on other nodes can reach
    port: int  # where its agent listens for the links of others
    role: str
    workers: tuple[Worker, ...]  # in rank order
    lease_number: int = 0  # which of its leases its agent has; 0 if the store has no leases
    preferred_rank: int = 0  # its wanted place among the nodes; equal ones go by arrival, survivors first

    @property
    def life(self) -> tuple[str, int]:
        """The node and its incarnation: what tells this life of the node from earlier ones."""
        return (self.node, self.incarnation)


class NodeIntent(Enum):
    """What a node wants from the job."""

    READY = "READY"  # to be in the world
    AWAY = "AWAY"  # to be left out for now: its workers are being restarted
    FINISHED = "FINISHED"  # nothing more: all its workers have exited 0
    LEFT = "LEFT"  # to be left out for good
    FAILED = "FAILED"  # the job to end, because of its failure


BarrierRequest = tuple[int, int]
"""The edition of the record in whose world workers are to wait, and how many requests in it came to nothing before."""
NO_REQUEST: BarrierRequest = (0, 0)


@dataclass(frozen=True, slots=True)
class BarrierAnswer:
    """A node's answer to `request`: its workers wait, one after step `first`, and all after step `last` at the latest.

    Both are 0 if none of them counts steps. `all`: every one of them counts, and has begun to. `step_s` is how many
    seconds a step takes the slowest of them; 0 if that is not known.
    """

    request: BarrierRequest
    first: int
    last: int
    all: bool
    step_s: float = 0.0


class RecordId(NamedTuple):
    """Which record is meant. Its name alone tells; the rest places it among the others."""

    lineage: str = ""
    version: int = 0  # 0: none
    name: str = ""


NO_RECORD = RecordId()


@dataclass(frozen=True, slots=True)
class Report:
    """What a node says of itself to its leader or, if it leads, to its followers. The newest one holds."""

    member: Member
    intent: NodeIntent
    known: RecordId = NO_RECORD  # the record that it knows; a newcomer joins only that job
    done: tuple[int, ...] = ()  # local ranks of workers that exited 0: never part of a later world
    broken_round: int = 0  # the last world that one of its workers found broken; 0: none
    reason: str = ""  # of FAILED: why the job is to end; if it leaves, why it does
    sequence: int = 0  # number of this report; only rises, so an older one that arrives late on another link is ignored
    fault: WorkerFault | None = None  # the last fault of its workers; several in one world are joined
    missed_round: int = 0  # the last world that one of its workers missed because its work was done; 0: none
    through: int = 0  # the last world in which its workers worked, if one has ended with its work done; else 0
    stuck: bool = False  # one of its workers does not leave a world that the others have left, and may come back
    since: int = 0  # the first world from which on one of its living workers has been in every world; 0: none has
    ends: bool = False  # its agent ends now, and has no say in the next record any more
    leaving: bool = False  # it wants to leave, and works until the others can do without it
    leave_s: float = 0.0  # if it leaves: how many seconds its workers have to save and to end
    all_leave: bool = False  # if it leaves: the whole job is to
    heeds: bool = False  # its workers, told to leave for good, stop after an agreed step and save
    never_came: int = 0  # the last world in which a worker exited 0 without ever asking for a world; 0: none
    asks: bool = False  # its workers ask for their worlds, and so stop by themselves if their agent is not heard
    told: int = 0  # the last world that its workers were told of; a change of this field only is not sent
    yields: int = 0  # the edition of the record whose next world it cannot be in, so others lead first; 0: none
    calls: int = 0  # the last world in which its workers have called live_workers or live_barrier; 0: none
    decides: int = 0  # up to which world it coordinates the calls in all worlds that are not over
    promised: int = 0  # the edition of the record in whose world, and those before it, it delivers no verdict any more
    verdicts: tuple[Verdict, ...] = ()  # what was delivered there last, once it has promised or its work is done
    barrier_answer: BarrierAnswer | None = None  # after which steps its workers wait, at the leader's request
    # Only a leader sets these:
    barrier_request: BarrierRequest = NO_REQUEST  # asks all workers to wait
    release_edition: int = 0  # the edition of the record in whose world they may go on; 0: none
    expels_leavers: bool = False  # nodes that leave must not wait for the others
    hands_over: int = 0  # the edition of the record that another is to lead on, since this node leaves; 0: none
    asks_promise: int = 0  # the edition of the record that is to end, so nodes are to promise; 0: none


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a listener is. `host` is a name or an address that the other nodes can reach."""

    host: str
    port: int

    def __str__(self) -> str:
        """As --rdzv_endpoint takes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The settings with which every agent of a job must have been started."""

    min_nodes: int
    max_nodes: int
    restart_policy: str
    worker_failure: str
    named_store: bool = False  # the workers of the first world meet at the address that the user has named
    tolerance_s: float = 0.0  # how long the agents wait for a silent one
    witness: Address | None = None  # where the job's witness listens, if it has one
    durable: bool = False  # no worker has an answer to a call of live_workers before the record has it


class Phase(Enum):
    """The phase of a round."""

    OPEN = "OPEN"  # too few members for a world; those that have workers keep them paused
    SEALED = "SEALED"  # a world
    CLOSED = "CLOSED"  # the job is over
    GIVEN_UP = "GIVEN_UP"  # the job was founded twice, and its nodes join the other one


@dataclass(frozen=True)
class Round:
    """The record that all agents share. It changes only by agreement, from `version` to `version + 1`."""

    version: int
    number: int  # of the world that was sealed last; 0 before the first
    phase: Phase
    members: tuple[Member, ...]  # of the world, in rank order; if OPEN: those that keep their place
    settings: JobSettings
    worker_store: Address | None = None  # of the agent that sealed the world; None: the user has named a place
    lost: tuple[str, ...] = ()  # nodes judged dead by the transition to this version
    finishing: bool = False  # a node has finished: no newcomers are admitted
    finished: tuple[int, ...] = ()  # which of the members have, by their places among them: nobody misses them
    retired: tuple[int, ...] = ()  # which of these are not in touch any more: they have no vote on the next record
    outcome: str = ""  # if CLOSED: why the job failed; empty after success
    fault: WorkerFault | None = None  # what ended the world before this one, if a fault did
    leave_after: int = 0  # the step after which all leave the world before this one; 0: at once
    stepless: int = 0  # how many worlds in a row, before this one, ended before any worker had completed a step
    lineage: str = ""  # the node that founded the job; two founders may not know of each other
    heir: Address | None = None  # if GIVEN_UP: of an agent of the job that this one becomes part of
    witness: str = ""  # has the casting vote on the next record, though it is no node; "": none has
    verdicts: tuple[Verdict, ...] = ()  # the last ones of the worlds that ended last, or, if durable, of this one
    decided: int = 0  # how many of its changes were such verdicts, and nothing else
    preemption: Preemption | None = None  # if all workers leave for good, and the job goes on later
    worked_s: float = field(default=0.0, compare=False)
    """For how many seconds the job had had a world when this was proposed, by the clocks of those that led it."""
    name: str = field(default="", compare=False)
    """Given to it by the agent that made it, and to no other; "" if a store keeps the record."""
    past: tuple[str, ...] = field(default=(), compare=False)
    """The names of those before it, the last one first, as far back as `softrun.agent.consensus.descent.IN_RECORD`."""
    by_proof: tuple[tuple[int, str], ...] = field(default=(), compare=False)
    """The versions and names of the last records up to it that less than a quorum made, since all others had ended."""
    split_from: str = ""
    """The first name of its lineage, if it was found that two jobs had that name; else ""."""

    @property
    def id(self) -> RecordId:
        """Tells it from all others."""
        return RecordId(self.lineage, self.version, self.name)

    def follows(self, before: RecordId) -> bool:
        """Return whether it is the next one after that."""
        return self.version == before.version + 1 and self.past[:1] == (before.name,)

    @property
    def edition(self) -> int:
        """It counts the changes but those that only answer calls: what is under way in a world goes on then."""
        return self.version - self.decided

    def says_more_than(self, before: Round | None) -> bool:
        """Return whether more has changed since `before` than that calls were answered."""
        return before is None or (before.edition, before.lineage) != (self.edition, self.lineage)

    @property
    def is_last(self) -> bool:
        """Whether no other follows it."""
        return self.phase in (Phase.CLOSED, Phase.GIVEN_UP)

    def member(self, node: str, incarnation: int) -> Member | None:
        """Return this incarnation of the node if it is a member of this round, else None."""
        member = self.by_node.get(node)
        return member if member is not None and member.incarnation == incarnation else None

    @cached_property
    def by_node(self) -> dict[str, Member]:
        """Its members, in rank order."""
        return {member.node: member for member in self.members}

    @cached_property
    def finished_nodes(self) -> frozenset[str]:
        """The nodes of those that have finished."""
        return frozenset(self.members[place].node for place in self.finished)

    @cached_property
    def voters(self) -> tuple[str, ...]:
        """The nodes whose agents vote on the next record, in rank order."""
        retired = set(self.retired)
        return tuple(node for place, node in enumerate(self.by_node) if place not in retired)

    def votes(self, node: str) -> bool:
        """Return whether the agent of `node` votes on the next record."""
        return node in self._voting

    @cached_property
    def _voting(self) -> frozenset[str]:
        return frozenset(self.voters)


@dataclass(frozen=True, slots=True)
class Change:
    """What the next record differs in from the one before. `softrun.agent.consensus.change` makes and applies it.

    `round` is the next one with only those of its members that the one before has not, or has otherwise. `members` says
    who its members are, in rank order: each item is where in the one before they begin, and how many; -1 for the next
    ones of `round`.
    """

    round: Round
    members: tuple[tuple[int, int], ...]


def lineage(founder: str, version: int) -> str:
    """Return the name of the lineage of records that `founder` begins with this version."""
    return f"{founder}@{version}"


# --- messages between agents

Ballot = tuple[int, str]
"""The number of an attempt to change the record, and the node that makes it. The higher one counts."""


@dataclass(frozen=True, slots=True)
class Beat:
    """Proof of life, and a lease: its receiver was not left behind.

    `at` is the sender's clock, and means nothing to the receiver, which returns it as `echo` (0: it has heard no beat).
    The sender will not take the receiver for dead, and if it leads nobody else will, until `grant_s` seconds after the
    receiver sent the beat that is echoed.
    """

    at: float = 0.0
    echo: float = 0.0
    grant_s: float = 0.0
    leads: bool = False
    asks: bool = False  # for a beat in return


@dataclass(frozen=True, slots=True)
class Hello:
    """A report that asks for one in return, and for the record if the sender's is older or of another founder.

    It is the first on a link that was dialled, and the answer to a beat from a node whose report is missing or may be
    out of date. To a node that it follows from now on it gives its first beat as well, and may promise that node's next
    ballot: it has accepted nothing as the next record, and will accept nothing from lower ballots.
    """

    report: Report
    promises: Ballot | None = None
    beat: Beat | None = None

    @property
    def known(self) -> RecordId:
        """The newest record that the sender knows."""
        return self.report.known


@dataclass(frozen=True, slots=True)
class Prepare:
    """Asks a member of the record `after` to accept nothing from lower ballots any more, as the one after it."""

    ballot: Ballot
    after: RecordId = NO_RECORD


@dataclass(frozen=True, slots=True)
class Promise:
    """Answers Prepare: nothing from lower ballots will be accepted. `accepted` is what was accepted last, if anything,
    in ballot `accepted_in`."""

    ballot: Ballot
    accepted_in: Ballot | None = None
    accepted: Change | None = None
    after: RecordId = NO_RECORD


@dataclass(frozen=True, slots=True)
class Accept:
    """Asks a member of the record `after` to accept this as the next one. Who is no member keeps it until Decided.

    `change` is what it differs in, since a record that goes to all of its N members would take O(N²) bytes.
    """

    ballot: Ballot
    change: Change
    after: RecordId = NO_RECORD


@dataclass(frozen=True, slots=True)
class Accepted:
    """Answers Accept."""

    ballot: Ballot
    after: RecordId = NO_RECORD


@dataclass(frozen=True, slots=True)
class Refused:
    """Answers Prepare or Accept: a higher ballot was promised."""

    promised: Ballot
    after: RecordId = NO_RECORD


@dataclass(frozen=True, slots=True)
class Decided:
    """What was to be accepted in this ballot is the record now, after this one. `by_proof`: see `Round`."""

    ballot: Ballot
    after: RecordId = NO_RECORD
    by_proof: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """The newest record that the sender knows, to a node that may not know it.

    `stands`: the sender is sure that it is the newest, or follows an agent that leads by it. `worked_s`: for how many
    seconds the job has had a world by now. `over`: the lineage of a job that has had one for a shorter time, and is to
    give up for this one. `apart_from`: the name of a record of the receiver's that should be one of those before it,
    and is not.
    """

    round: Round
    stands: bool = False
    worked_s: float = 0.0
    over: str = ""
    apart_from: str = ""


@dataclass(frozen=True, slots=True)
class Witnessed:
    """Answers a Beat, a Hello or a Record: its sender is a witness, and this is the record that it holds, if any."""

    known: RecordId = NO_RECORD


@dataclass(frozen=True, slots=True)
class LastWords:
    """Its sender has ended, and so have its workers: it says so itself, or what outlives it on its host does.

    `round` is the record that it knew: what that differs in from the one that it knew `before`, or all of it, where no
    such one is named. None: it knew none. It had `promised` to accept nothing in any ballot below that, and `accepted`
    is what the one that it accepted as the next one, in ballot `accepted_in`, differs in from the record: nobody will
    change its vote any more. `report` is its last one, if it says so itself.
    """

    round: Change | None = None
    before: RecordId = NO_RECORD
    promised: Ballot | None = None
    accepted_in: Ballot | None = None
    accepted: Change | None = None
    report: Report | None = None


Agreement = Prepare | Promise | Accept | Accepted | Refused | Decided
"""The messages by which the members agree on the next record (`softrun.agent.consensus.replica`)."""

Message = Report | Hello | Beat | Record | Witnessed | LastWords | Agreement | Calls | Verdict
