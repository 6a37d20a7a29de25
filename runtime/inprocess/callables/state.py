"""The argument of callbacks: one rank's view of the job at one iteration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class State:
    """One rank's view of the job. To change it for the next callback of a Compose, return
    `dataclasses.replace(state, …)`."""

    rank: int
    """Its rank among all living ranks, including reserves."""
    world_size: int
    active_rank: int | None
    """RANK in the wrapped function; None if this rank is a reserve."""
    active_world_size: int
    initial_rank: int
    initial_world_size: int
    iteration: int
    """0 at the first call of the function."""
    round: int
    """The number that the agents gave this world."""
    fn_exception: BaseException | None = None
    """What ended the last iteration on this rank: what the function raised, or `RestartRequest` if the reason lies
    elsewhere, such as a lost peer; None at first."""

    @property
    def is_active(self) -> bool:
        """Whether this rank calls the function; a reserve waits."""
        return self.active_rank is not None
