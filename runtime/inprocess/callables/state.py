"""What a callback is given: one rank's view of the job at one iteration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class State:
    """To change what the next callback of a Compose is given, return `dataclasses.replace(state, …)`."""

    rank: int
    """Among all ranks that live, reserves included."""
    world_size: int
    active_rank: int | None
    """RANK in the wrapped function; None: this rank is a reserve."""
    active_world_size: int
    initial_rank: int
    initial_world_size: int
    iteration: int
    """0 for the first call of the function."""
    round: int
    """The agents' number of this world."""
    fn_exception: BaseException | None = None
    """What ended the iteration before on this rank."""

    @property
    def is_active(self) -> bool:
        """Whether this rank calls the function; a reserve waits, warm."""
        return self.active_rank is not None
