"""What every checker is, and what several of them ask of a record."""

from __future__ import annotations

from simulation.cluster import Watcher
from softrun.agent.protocol.model import Phase, Round

Life = tuple[str, int, int, int]


class BrokenPromiseError(AssertionError):
    """A promise was broken. The first argument names it."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


class Checker(Watcher):
    def demand(self, holds: bool, what: str) -> None:
        if not holds:
            raise BrokenPromiseError(type(self).__name__, f"at {self.cluster.now:.3f}: {what}")


def lives(round_: Round) -> list[Life]:
    return [(m.node, m.incarnation, w.local_rank, w.incarnation) for m in round_.members for w in m.workers]


def begins_again(round_: Round) -> bool:
    """Whether the job's next world begins all work again, also what was finished."""
    return round_.settings.restart_policy == "hard" and round_.preemption is None


def sealed_anew(before: Round | None, after: Round) -> bool:
    return after.phase is Phase.SEALED and (before is None or after.number > before.number)
