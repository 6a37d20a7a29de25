"""NCCL's errors are left to softrun, and end this process only if nothing else comes of them. NCCL itself cannot be had
here: `scripts/check_gpu` shows the same on a GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from softrun.runtime import nccl
from softrun.runtime.groups import group_registry
from softrun.runtime.nccl import ANSWERED_S, ErrorWatch, are_left_alone, leave_errors_alone

HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
DUMPS = ("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_NCCL_DUMP_ON_TIMEOUT")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (HANDLING, *DUMPS, "TORCH_NCCL_RETHROW_CUDA_ERRORS"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize("given", [None, "1"])
def test_torchs_watchdog_is_told_to_leave_errors_alone(environment: pytest.MonkeyPatch, given: str | None) -> None:
    """The launcher sets 1, as torchrun does. What else was set for the dumps would make survivors wait for minutes."""
    if given is not None:
        environment.setenv(HANDLING, given)
    environment.setenv(DUMPS[0], "60000")
    environment.setenv(DUMPS[1], "1")
    leave_errors_alone()
    assert [os.environ[name] for name in (HANDLING, *DUMPS)] == ["0", "1", "0"]


@pytest.mark.parametrize("given", ["2", "3"])
def test_a_users_own_way_to_handle_errors_stays(environment: pytest.MonkeyPatch, given: str) -> None:
    environment.setenv(HANDLING, given)
    environment.setenv(DUMPS[1], "1")
    leave_errors_alone()
    assert os.environ[HANDLING] == given
    assert os.environ[DUMPS[1]] == "1"
    assert DUMPS[0] not in os.environ
    assert not are_left_alone()


def test_nobody_watches_a_torch_without_nccl(environment: pytest.MonkeyPatch) -> None:
    leave_errors_alone()
    for has_nccl in (True, False):
        environment.setitem(
            sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_NCCL_AVAILABLE=has_nccl)
        )
        assert are_left_alone() is has_nccl
    environment.delitem(sys.modules, "torch.distributed.distributed_c10d")
    assert are_left_alone(), "it may yet be imported"


def test_ranks_that_meet_again_in_the_store_of_a_build_that_failed_wait_for_nobody_else() -> None:
    """Three of four had come then; now two are left."""
    store = dist.HashStore()
    build = {"backend": "cpu:gloo,cuda:nccl", "store": store, "timeout": timedelta(milliseconds=10)}
    for _ in range(3):
        with pytest.raises(dist.DistStoreError):
            group_registry._meet({**build, "group_size": 4})
    for _ in range(2):
        group_registry._meet({**build, "group_size": 2})


class Watched:
    """A watch whose thread has ended, so that only the test looks."""

    def __init__(self) -> None:
        self.sequence = 7
        self.watch = ErrorWatch(lambda: self.sequence)
        self.watch.end()

    def sees(self, failed: set[str], now: float) -> str | None:
        return self.watch.unanswered(failed, now)


FAILED = {"ProcessGroupNCCL: TIMEOUT"}


def test_an_error_that_nobody_answers_ends_the_process() -> None:
    watched = Watched()
    assert watched.sees(set(), 0.0) is None
    assert watched.sees(FAILED, 10.0) is None
    assert watched.sees(FAILED, 9.9 + ANSWERED_S) is None
    assert watched.sees(FAILED, 10.0 + ANSWERED_S) == "ProcessGroupNCCL: TIMEOUT"


def test_news_of_a_world_are_an_answer_for_as_long_as_it_may_take_to_leave_the_old_one() -> None:
    watched = Watched()
    watched.sees(FAILED, 0.0)
    watched.sequence = 8
    assert watched.sees(FAILED, ANSWERED_S) is None
    assert watched.sees(FAILED, 2 * ANSWERED_S - 0.1) is None
    assert watched.sees(FAILED, 2 * ANSWERED_S) is not None


def test_a_group_that_was_left_is_forgotten() -> None:
    watched = Watched()
    watched.sees(FAILED, 0.0)
    assert watched.sees(set(), 20.0) is None
    assert watched.sees(FAILED, ANSWERED_S) is None


def test_errors_are_those_of_backends_that_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nccl(SimpleNamespace):
        pass

    backends = [
        Nccl(get_error=lambda: SimpleNamespace(name="SUCCESS")),
        Nccl(get_error=lambda: SimpleNamespace(name="TIMEOUT")),
        SimpleNamespace(),
    ]
    monkeypatch.setattr(nccl, "backends_but_gloo", lambda: iter(backends))
    assert list(nccl.errors()) == ["Nccl: TIMEOUT"]


@pytest.mark.processes
def test_whoever_gives_up_leaves_its_flight_record_and_ends_as_under_torchrun(tmp_path: Path) -> None:
    program = """
import sys
from types import SimpleNamespace
sys.modules["torch._C._distributed_c10d"] = SimpleNamespace(_dump_nccl_trace=lambda includeStackTraces: b"records")
from softrun.runtime.nccl import give_up
give_up("ProcessGroupNCCL: TIMEOUT")
"""
    prefix = tmp_path / "records" / "rank_"
    environment = os.environ | {"TORCH_FR_DUMP_TEMP_FILE": str(prefix), "RANK": "3"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGABRT, done
    assert "NCCL has failed (ProcessGroupNCCL: TIMEOUT)" in done.stderr
    assert Path(f"{prefix}3").read_bytes() == b"records"
