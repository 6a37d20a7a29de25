"""What a rank assignment gets and gives back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from softrun.runtime.inprocess.exception import RestartError
from softrun.runtime.inprocess.state import State
from softrun.runtime.inprocess.store import IterationStore


class RankDiscarded(RestartError):  # noqa: N818
    """The rank assignment has discarded this rank: its process ends, and its node goes on without it."""


@dataclass
class RankAssignmentCtx:
    """One rank's view of the ranks before, and after, an assignment. It is changed and given back."""

    state: State
    """This rank's. Before: survivors have their last rank; newcomers have been given lost ranks first, then numbers
    above. After: its rank, and the world's size. Without an active rank it is as active as its mode says."""
    store: IterationStore
    """For what the ranks must tell each other."""
    terminated_ranks: set[int]
    """The ranks that nobody has, or that leave. Whoever closes the gaps empties it."""
    newcomers: set[int] = field(default_factory=set)
    """Ranks whose processes were not in the last iteration, so they have no state."""

    @property
    def living(self) -> list[int]:
        """The ranks that stay."""
        return [rank for rank in range(self.state.world_size) if rank not in self.terminated_ranks]


class RankAssignment(ABC):
    """Gives each rank of an iteration its number, and says which are active and which leave.

    Every rank calls it, on the same numbers, and they must agree: a difference is an error that names both ranks.
    Raises RankDiscarded on a rank that must leave.
    """

    @abstractmethod
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx: ...


class RankFilter(RankAssignment):
    """A RankAssignment that only chooses the active ranks."""
