"""Callbacks for the start of every iteration, including the first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from softrun.runtime.inprocess.calls.arguments import check_count
from softrun.runtime.inprocess.exception import RestartAbort
from softrun.runtime.inprocess.state import State


class Initialize(ABC):
    """Prepares an iteration. An Exception leads to another restart; a BaseException ends the wrapper."""

    @abstractmethod
    def __call__(self, state: State) -> State | None: ...


@dataclass(frozen=True)
class RetryController(Initialize):
    """Ends the job after `max_iterations` (None: never), or if too few ranks or active ranks are left."""

    max_iterations: int | None = None
    min_world_size: int = 1
    min_active_world_size: int = 1

    def __post_init__(self) -> None:
        if self.max_iterations is not None:
            check_count("RetryController: max_iterations", self.max_iterations, 1)
        check_count("RetryController: min_world_size", self.min_world_size, 1)
        check_count("RetryController: min_active_world_size", self.min_active_world_size, 1)

    def __call__(self, state: State) -> State:
        reason = self._reason(state)
        if reason:
            raise RestartAbort(f"RetryController ends the job: {reason}") from state.fn_exception
        return state

    def _reason(self, state: State) -> str:
        if self.max_iterations is not None and state.iteration >= self.max_iterations:
            return f"all of max_iterations={self.max_iterations} iterations were used{_last_error(state)}"
        if state.world_size < self.min_world_size:
            return f"{state.world_size} ranks are left, fewer than min_world_size={self.min_world_size}"
        if (state.active_world_size or 0) < self.min_active_world_size:
            wanted = f"min_active_world_size={self.min_active_world_size}"
            return f"{state.active_world_size} of {state.world_size} ranks are active, fewer than {wanted}"
        return ""


def _last_error(state: State) -> str:
    error = state.fn_exception
    if not isinstance(error, Exception):
        return ""
    return f"; the last error here was {' '.join(f'{type(error).__name__}: {error}'.split())[:160]}"
