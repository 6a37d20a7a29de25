"""Callbacks that decide whether this rank can take part in the next iteration."""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from softrun.runtime.inprocess.calls.arguments import check_count, check_duration
from softrun.runtime.inprocess.calls.bounded import call_bounded
from softrun.runtime.inprocess.exception import HealthCheckError
from softrun.runtime.inprocess.hardware import nics, nvml
from softrun.runtime.inprocess.state import State

_log = logging.getLogger("softrun.runtime.inprocess")


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


@dataclass(eq=False)
class _DeviceHealthCheck(HealthCheck):
    """A check of one GPU, numbered as CUDA numbers it in this process, or None: of all."""

    device_index: int | None = None

    def __post_init__(self) -> None:
        if self.device_index is not None:
            check_count(f"{type(self).__name__}: device_index", self.device_index, 0)


class ChainedGPUHealthCheck(_DeviceHealthCheck):
    """Asks the driver whether a GPU is broken or needs a recovery action, such as a reset.

    `device_index` is CUDA's number of the GPU in this process, such as LOCAL_RANK; None: every GPU of the node, also
    those of other ranks. It needs `pip install nvidia-ml-py` and a driver of release 570 or newer, and passes without
    them. A driver that does not answer within 30 s means a broken GPU.
    """

    def __call__(self, state: State) -> State:
        try:
            needed = nvml.needed_recovery(self.device_index)
        except nvml.GpuFault as fault:
            raise HealthCheckError(
                f"ChainedGPUHealthCheck: rank {state.rank} is unfit: {fault}; reset the GPU or reboot the node"
            ) from fault
        if needed:
            actions = ", ".join(f"{gpu} needs recovery ({action})" for gpu, action in needed.items())
            raise HealthCheckError(
                f"ChainedGPUHealthCheck: rank {state.rank} is unfit: {actions}; "
                "do that, or replace the node, before the GPU is used again"
            )
        return state


@dataclass(eq=False)
class ChainedNVLHealthCheck(_DeviceHealthCheck):
    """Logs a warning if NVLinks are down that were active at the first check.

    As in nvidia-resiliency-ext, it never ends a rank. `device_index` and its needs are as for ChainedGPUHealthCheck.
    """

    _first: dict[str, list[bool]] = field(default_factory=dict, init=False, repr=False)
    _lost: str = field(default="", init=False, repr=False)

    def __call__(self, state: State) -> State:
        try:
            links = nvml.active_links(self.device_index)
        except nvml.GpuFault as fault:
            _log.warning("ChainedNVLHealthCheck: rank %s cannot see its NVLinks: %s", state.rank, fault)
            return state
        before, self._lost = self._lost, ", ".join(self._losses(links))
        if self._lost and self._lost != before:
            _log.warning(
                "ChainedNVLHealthCheck: rank %s has lost NVLinks: %s; see `nvidia-smi nvlink --status`",
                state.rank,
                self._lost,
            )
        return state

    def _losses(self, links: dict[str, list[bool]]) -> Iterator[str]:
        for gpu, now in links.items():
            active_at_first = self._first.setdefault(gpu, now)
            pairs = enumerate(zip(active_at_first, now, strict=False))
            lost = [str(link) for link, (was_active, is_active) in pairs if was_active and not is_active]
            if lost:
                yield f"{gpu} link {' '.join(lost)}"


@dataclass(eq=False)
class ChainedNicHealthCheck(_DeviceHealthCheck):
    """Finds InfiniBand and RoCE links that have gone down since the last check, even if they came back.

    The first check compares with the time at which this instance was made. With a `device_index`, as for
    ChainedGPUHealthCheck, it watches the NICs that are nearest to that GPU, behind the same PCI switch or root port.
    This needs `pip install nvidia-ml-py`; without it, or if no NIC is near, it watches none. None: every NIC of the
    node.
    """

    _links: nics.Links = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._links = nics.Links(nics.SYSFS, self.device_index)

    def __call__(self, state: State) -> State:
        failures = self._links.failures()
        if failures:
            raise HealthCheckError(
                f"ChainedNicHealthCheck: rank {state.rank} is unfit: {', '.join(failures)}; "
                "check the cable and the switch, or replace the node"
            )
        return state
