"""Whether a rank is fit for another call: its GPU, and how often it has raised."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from states import STATE, at

from softrun.runtime.inprocess import (
    Compose,
    CudaHealthCheck,
    FaultCounter,
    HealthCheck,
    HealthCheckError,
    State,
    Wrapper,
)


class FakeCuda:
    """torch.cuda, whose current device is each thread's own and whose errors may come late."""

    def __init__(self, *outcomes: Exception | float) -> None:
        self.outcomes = list(outcomes)
        self.synchronized: list[int] = []
        self.owner = threading.current_thread()

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 3 if threading.current_thread() is self.owner else 0

    def synchronize(self, device: int) -> None:
        assert threading.current_thread().daemon, "a thread that hangs must not keep the process"
        self.synchronized.append(device)
        outcome = self.outcomes.pop(0) if self.outcomes else 0.0
        if isinstance(outcome, Exception):
            raise outcome
        time.sleep(outcome)


def check_with(monkeypatch: pytest.MonkeyPatch, cuda: object) -> State:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return CudaHealthCheck(timedelta(seconds=0.2))(STATE)


def test_the_gpu_is_waited_for_twice_on_the_device_of_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    assert check_with(monkeypatch, cuda) is STATE
    assert cuda.synchronized == [3, 3]


def test_a_corrupted_context_that_reports_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(0.0, RuntimeError("CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA"))
    with pytest.raises(HealthCheckError, match=r"the GPU of rank 1 fails: CUDA error: device-side assert triggered$"):
        check_with(monkeypatch, cuda)


def test_a_gpu_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HealthCheckError, match=r"did not finish its work within 0\.2 s; it hangs, or timeout must be"):
        check_with(monkeypatch, FakeCuda(2.0))


@pytest.mark.slow
def test_a_health_check_imports_and_initializes_nothing() -> None:
    program = """
import sys
from softrun.runtime.inprocess import CudaHealthCheck
CudaHealthCheck()(None)
assert "torch" not in sys.modules
import torch
CudaHealthCheck()(None)
assert not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_rank_that_raises_too_often_is_filtered_out() -> None:
    counter = FaultCounter(max_rank_faults=2)
    counter(STATE)
    counter(at(fn_exception=ValueError(1)))
    counter(at(fn_exception=KeyboardInterrupt()))  # how the wrapper ends a function where another rank failed
    counter(at(fn_exception=ValueError(2)))
    with pytest.raises(HealthCheckError, match="raised 3 times on rank 1, more than max_rank_faults=2"):
        counter(at(fn_exception=ValueError(3)))


def test_one_fault_counts_once_though_the_check_runs_twice() -> None:
    first, second = FaultCounter(1), FaultCounter(0)
    error = at(fn_exception=ValueError())
    first(error)
    first(replace(error, iteration=1))
    assert first.faults == 1
    with pytest.raises(HealthCheckError):
        second(error)


def test_after_a_fault_the_hardware_of_the_local_rank_is_checked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    own = FaultCounter(2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert Wrapper(health_check=own).restart_health_check is own
    assert Wrapper().restart_health_check is None
    monkeypatch.setenv("LOCAL_RANK", "3")
    checks = Wrapper(health_check=own).restart_health_check
    assert isinstance(checks, Compose)
    assert isinstance(checks, HealthCheck)
    assert checks.instances[0] is own, "the last listed is called first"
    assert [type(check).__name__.removeprefix("Chained") for check in checks.instances[1:]] == [
        "GPUHealthCheck",
        "NVLHealthCheck",
        "NicHealthCheck",
    ]
    assert {check.device_index for check in checks.instances[1:]} == {3}  # type: ignore[attr-defined]
    assert checks(STATE) is STATE
