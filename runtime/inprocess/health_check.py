"""Callbacks that decide whether this rank can take part in the next iteration."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from softrun.runtime.inprocess.calls.arguments import check_count, check_duration
from softrun.runtime.inprocess.calls.bounded import call_bounded
from softrun.runtime.inprocess.exception import HealthCheckError
from softrun.runtime.inprocess.state import State


class HealthCheck(ABC):
    """The guide: "The execution should be local to the calling rank, other ranks may have already been terminated, lost
    or still executing the wrapped function." Any exception ends this rank's process.
    """

    @abstractmethod
    def __call__(self, state: State) -> State | None: ...


@dataclass(frozen=True)
class CudaHealthCheck(HealthCheck):
    """Waits until the current device has done all its work, and so finds a hung GPU and a corrupted context.

    Call it in the thread that chose the device. It does nothing if this process has not used CUDA: making a context
    takes seconds and memory, and might happen on another rank's device.
    """

    timeout: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        check_duration("CudaHealthCheck: timeout", self.timeout)

    def __call__(self, state: State) -> State:
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return state
        try:
            # Each thread has its own current device, so the waiting thread must be told.
            wait = partial(cuda.synchronize, cuda.current_device())
            # Twice: a corrupted context may report an error only on the second call.
            ended = all(call_bounded(wait, self.timeout, "softrun-cuda-health-check") for _ in range(2))
        except Exception as error:
            summary = str(error).strip().split("\n")[0]
            raise HealthCheckError(f"CudaHealthCheck: the GPU of rank {state.rank} fails: {summary}") from error
        if not ended:
            raise HealthCheckError(
                f"CudaHealthCheck: the GPU of rank {state.rank} did not finish its work within "
                f"{self.timeout.total_seconds():g} s; it hangs, or timeout must be longer than a training step"
            )
        return state


class FaultCounterExceeded(HealthCheckError):  # noqa: N818
    """The function has raised on this rank more often than allowed."""


@dataclass(eq=False)
class FaultCounter(HealthCheck):
    """Ends a rank once the function has raised there more often than allowed; faults of other ranks do not count.

    Without a limit it only counts, in `faults`. Raises FaultCounterExceeded.
    """

    max_rank_faults: int | None = None
    faults: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.max_rank_faults is not None:
            check_count("FaultCounter: max_rank_faults", self.max_rank_faults, 0)

    def __call__(self, state: State) -> State:
        if isinstance(state.fn_exception, Exception) and self._is_new(state.fn_exception):
            self.faults += 1
        if self.max_rank_faults is not None and self.faults > self.max_rank_faults:
            raise FaultCounterExceeded(
                f"FaultCounter: the function has raised {self.faults} times on rank {state.rank}, "
                f"more than max_rank_faults={self.max_rank_faults}"
            ) from state.fn_exception
        return state

    def _is_new(self, error: Exception) -> bool:
        """Whether this exception was not counted before: the check runs after a fault and before the next iteration.

        The exception is marked. Keeping it here would keep its traceback, and so the memory of the iteration.
        """
        counters: list[FaultCounter] = vars(error).setdefault("_softrun_counters", [])
        if self in counters:
            return False
        counters.append(self)
        return True
