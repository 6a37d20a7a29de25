"""The troubles of living workers: faults that they report, and hangs that the progress watchdog finds.

A hung worker and one that waits for it look alike. So when one is suspected, all are told to leave their world. A
worker that leaves is healthy. A worker that does not leave, and makes no progress even then, is stuck: the others go on
without it until it has left, or is ended because its hard limit has passed. Nobody waits for a worker that a signal
has stopped: it cannot leave.

Faults are reported to the leader, which announces them with the new world. A known fault is reported at once, and the
leader waits for faults of other workers for as long as the worker asked. A suspicion is reported a little later, since
another agent may know which worker the others wait for.
"""

from __future__ import annotations

from enum import Enum

from softrun.agent.core.local_workers import LocalWorkers
from softrun.agent.protocol.effects import Effect
from softrun.agent.protocol.model import Round
from softrun.agent.protocol.observations import ProgressSeen
from softrun.runtime.events import Interruption, WorkerFault, joined

OBEY_S = 0.1  # how long a worker that makes no progress may take to leave its world
BLAME_S = 0.3  # how long other agents may take to find the hung worker, before a suspicion is reported


class Finding(Enum):
    """What a look at a worker's progress has shown."""

    WELL = "WELL"
    SUSPECT = "SUSPECT"  # it hangs, or waits for a worker that does
    STUCK = "STUCK"  # it does not leave its world
    HANGS = "HANGS"  # it does not leave its world, and its hard limit has passed


class WorkerHealth:
    """The faults and suspicions of one node's workers. `host` names the node in log lines."""

    def __init__(self, workers: LocalWorkers, host: str, now: float) -> None:
        self._workers = workers
        self._host = host
        self._faults: dict[int, WorkerFault] = {}  # all of one world, by local rank, in the order of their reports
        self._say_at = now
        self._suspects: set[int] = set()  # they were told to leave
        self._judge_at = now  # when they are looked at again

    def deadlines(self) -> tuple[float, float]:
        """When there is something to say, and when suspects are looked at again."""
        return self._say_at, self._judge_at

    def to_say(self, now: float) -> WorkerFault | None:
        """The fault to report to the leader, once it is time."""
        return joined(list(self._faults.values())) if self._faults and now >= self._say_at else None

    def told(self, world: Round, local_rank: int, fault: WorkerFault, now: float) -> None:
        """A worker reports a fault."""
        if not self._of(world):
            self._faults, self._say_at = {}, now
        known = self._faults.get(local_rank, fault)
        self._faults[local_rank] = known.model_copy(update={"depth": min(known.depth, fault.depth)})

    def suspect(self, local_rank: int, now: float) -> None:
        """A worker makes no progress and was told to leave its world: look at it again soon."""
        if not self._suspects:
            self._judge_at = now + OBEY_S
        self._suspects.add(local_rank)

    def accuse(self, local_rank: int, now: float) -> None:
        """This worker is why all were told to leave."""
        world = self._workers.told
        if world is not None and not self._of(world):
            self._blame(local_rank, world, now, now + (BLAME_S if len(world.members) > 1 else OBEY_S))

    def look(self, seen: ProgressSeen, now: float) -> Finding:
        """Judge what a look at a worker's progress has shown."""
        local_rank = seen.local_rank
        passed = self._workers.hangs(local_rank, seen.launch, seen.at, now)
        stopped = seen.stopped and self._workers.leaving(local_rank)
        if stopped or (local_rank in self._suspects and now >= self._judge_at):
            self._suspects.discard(local_rank)
            return self._judge(local_rank, stopped, now)
        if passed and self._workers.waits(local_rank) and self._workers.overdue(local_rank, now):
            return Finding.HANGS  # it waits for a world, and workers that wait make progress
        return Finding.SUSPECT if passed else Finding.WELL

    def advance(self, now: float) -> list[Effect]:
        """Look at the suspects whose time is up."""
        self._suspects = {local_rank for local_rank in self._suspects if self._workers.leaving(local_rank)}
        if now < self._judge_at:
            return []
        return [effect for local_rank in sorted(self._suspects) for effect in self._workers.look(local_rank)]

    def _judge(self, local_rank: int, stopped: bool, now: float) -> Finding:
        world, known = self._workers.told, self._workers.is_stuck(local_rank)
        if not self._workers.give_up_on(local_rank, now, stopped=stopped):
            return Finding.WELL
        if world is not None and not known:
            self._blame(local_rank, world, now, now)
        return Finding.HANGS if self._workers.overdue(local_rank, now) else Finding.STUCK

    def _blame(self, local_rank: int, world: Round, now: float, say_at: float) -> None:
        text = f"{self._workers.describe(local_rank, now)} on {self._host}"
        cause = (self._workers.rank(local_rank), Interruption.SOFT_TIMEOUT)
        self._faults, self._say_at = {local_rank: WorkerFault(round=world.number, text=text, causes=(cause,))}, say_at

    def _of(self, world: Round) -> bool:
        """Whether the known faults are of this world."""
        return any(fault.round == world.number for fault in self._faults.values())
