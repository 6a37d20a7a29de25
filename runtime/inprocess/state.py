"""The argument of callbacks: one rank's view of the job at one iteration."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from dataclasses import FrozenInstanceError, dataclass, fields
from enum import Enum, auto
from typing import Any, NoReturn


class Mode(Enum):
    """What a rank does in an iteration."""

    INITIALIZED = auto()
    """No rank assignment has been made yet."""
    ACTIVE = auto()
    """It calls the function."""
    INACTIVE = auto()
    """It is a reserve and waits."""
    TERMINATED = auto()
    """It leaves the job."""


@dataclass
class State:
    """One rank's view of the job. Callbacks get it frozen; a rank assignment may change it."""

    rank: int | None
    """Its rank among all living ranks, including reserves; None if it leaves."""
    world_size: int
    active_rank: int | None = None
    """RANK in the wrapped function; None if this rank is a reserve."""
    active_world_size: int | None = None
    """WORLD_SIZE in the wrapped function."""
    initial_rank: int | None = None
    initial_world_size: int | None = None
    iteration: int = 0
    """How often the job has called the function again, the same on all ranks, also on those that have just joined."""
    mode: Mode = Mode.INITIALIZED
    fn_exception: BaseException | None = None
    """What the function raised on this rank in the last iteration; None if it was ended for another reason."""
    round: int = 0
    """The number that the agents gave this world."""

    def __post_init__(self) -> None:
        if self.initial_rank is None:
            self.initial_rank = self.rank
        if self.initial_world_size is None:
            self.initial_world_size = self.world_size

    @classmethod
    def from_env(cls) -> State:
        """What RANK and WORLD_SIZE say; one rank if they are not there."""
        return cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    @property
    def is_active(self) -> bool:
        """Whether this rank calls the function; a reserve waits."""
        return self.mode is Mode.ACTIVE

    def set_distributed_vars(self) -> None:
        """Set RANK and WORLD_SIZE to what the function is to find there."""
        os.environ.update(RANK=str(self.active_rank), WORLD_SIZE=str(self.active_world_size))

    def advance(self) -> None:
        """Make it the state of the next iteration."""
        self.iteration += 1
        self.fn_exception = None

    def freeze(self) -> FrozenState:
        """A copy whose fields are read-only."""
        return FrozenState(**vars(self))

    def copy_from(self, other: State, fields: Iterable[str] | None = None) -> None:
        """Take the values of these fields, all by default, from another state."""
        for name in _NAMES if fields is None else fields:
            setattr(self, name, getattr(other, name))


_NAMES = [field.name for field in fields(State)]


class FrozenState(State):
    """A State whose fields are read-only; `dataclasses.replace(state, …)` makes another."""

    __signature__ = inspect.signature(State)

    def __init__(self, *args: Any, **named: Any) -> None:
        self.__dict__.update(vars(State(*args, **named)))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
