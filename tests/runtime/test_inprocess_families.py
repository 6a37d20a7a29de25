"""The callbacks around a restarted function, and what their families have in common.

Quotes are of NVIDIA's usage guide to in-process restart.
"""

from __future__ import annotations

import copy
import logging
import pickle
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from states import STATE, at

from softrun.runtime.groups.abort import Abort
from softrun.runtime.inprocess import (
    AbortTorchDistributed,
    AbortTransformerEngine,
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    Completion,
    Compose,
    CudaHealthCheck,
    FaultCounter,
    FilterCountGroupedByKey,
    Finalize,
    HealthCheck,
    Initialize,
    Interruption,
    InterruptionRecord,
    MaxActiveWorldSize,
    Mode,
    NestedRestarterAborted,
    NestedRestarterFinalized,
    NestedRestarterHandlingCompleted,
    NestedRestarterHandlingProcessing,
    NestedRestarterHandlingStarting,
    RankAssignment,
    RestartAbort,
    RetryController,
    ShiftRanks,
    State,
    Terminate,
    ThreadedFinalize,
    format_interruption_records,
)

# State


def test_a_rank_without_an_active_rank_is_a_reserve() -> None:
    assert at(mode=Mode.ACTIVE).is_active
    assert not at(mode=Mode.INACTIVE, active_rank=None).is_active


# Compose


def test_the_last_listed_function_is_called_first() -> None:
    def add(state: State) -> State:
        return replace(state, iteration=state.iteration + 1)

    def double(state: State) -> State:
        return replace(state, iteration=state.iteration * 2)

    assert Compose(double, add)(at(iteration=3)).iteration == 8
    assert Compose(add, double)(at(iteration=3)).iteration == 7


def test_a_callback_that_returns_nothing_passes_its_argument_on() -> None:
    seen: list[object] = []
    assert Compose(seen.append, RetryController(), seen.append)(STATE) is STATE
    assert seen == [STATE, STATE]
    assert Compose(seen.append)(None) is None, "an Abort may be called without a state"
    assert Compose()(STATE) is STATE


class Both(Initialize, Finalize):
    def __call__(self, state: State) -> None: ...


@pytest.mark.parametrize(
    ("members", "family"),
    [
        ((ShiftRanks(), ActivateAllRanks()), RankAssignment),
        ((ShiftRanks(), lambda ctx: ctx), RankAssignment),
        ((print, RetryController()), Initialize),
        ((NestedRestarterHandlingStarting(),), Abort),
        ((FaultCounter(3), Compose(CudaHealthCheck(), print)), HealthCheck),
        ((ThreadedFinalize(timedelta(seconds=1), print), Both()), Finalize),
        ((NestedRestarterFinalized(), print), Completion),
        ((NestedRestarterAborted(), print), Terminate),
    ],
)
def test_a_compose_is_of_the_family_of_its_members(members: tuple[Callable[..., Any], ...], family: type) -> None:
    families = {RankAssignment, Initialize, Abort, HealthCheck, Finalize, Completion, Terminate}
    composed = Compose(*members)
    assert isinstance(composed, Compose)
    assert {one for one in families if isinstance(composed, one)} == {family}


def test_functions_alone_make_no_family() -> None:
    assert type(Compose(print, print)) is Compose


def test_a_family_of_ones_own_needs_no_entry_anywhere() -> None:
    class Own(ABC):
        @abstractmethod
        def __call__(self, state: State) -> State: ...

    class Member(Own, ABC):
        def __call__(self, state: State) -> State:
            return state

    assert isinstance(Compose(Member(), Member()), Own)
    with pytest.raises(TypeError, match="Member is of Own, RetryController is of Initialize"):
        Compose(Member(), RetryController())


def test_families_cannot_be_mixed() -> None:
    with pytest.raises(TypeError, match="Compose: ShiftRanks is of RankAssignment, RetryController is of Initialize; "):
        Compose(ShiftRanks(), print, RetryController())
    with pytest.raises(TypeError, match="MaxActiveWorldSize is of RankAssignment"):
        Compose(Compose(RetryController()), MaxActiveWorldSize(2))


def test_a_compose_can_be_copied_and_pickled() -> None:
    composed = Compose(ShiftRanks(), MaxActiveWorldSize(2))
    for again in (copy.deepcopy(composed), pickle.loads(pickle.dumps(composed))):
        assert again.instances == composed.instances
        assert isinstance(again, RankAssignment)
    assert repr(composed) == "Compose(ShiftRanks(), MaxActiveWorldSize(max_active_world_size=2))"


# Initialize


def test_the_number_of_iterations_is_limited() -> None:
    controller = RetryController(max_iterations=3)
    assert controller(at(iteration=2)) == at(iteration=2)
    boom = ValueError("boom")
    with pytest.raises(RestartAbort, match=r"all of max_iterations=3 .* were used; .* ValueError: boom") as end:
        controller(at(iteration=3, fn_exception=boom))
    assert end.value.__cause__ is boom
    assert not isinstance(end.value, Exception), '"raising a BaseException terminates the Wrapper"'
    assert RetryController(None)(at(iteration=10**6))


def test_halts_if_the_number_of_healthy_workers_drops_below_a_threshold() -> None:
    controller = RetryController(None, min_world_size=4, min_active_world_size=3)
    controller(STATE)
    with pytest.raises(RestartAbort, match="3 ranks are left, fewer than min_world_size=4"):
        controller(at(world_size=3))
    with pytest.raises(RestartAbort, match="2 of 4 ranks are active, fewer than min_active_world_size=3"):
        controller(at(active_world_size=2))


# Finalize


def test_a_finalize_runs_in_a_thread_of_its_own() -> None:
    ran: list[object] = []

    def clean(*args: object, **kwargs: object) -> None:
        ran.extend((args, kwargs, threading.current_thread() is threading.main_thread()))

    assert ThreadedFinalize(timedelta(seconds=10), clean, (1, 2), {"key": 3})(STATE) is STATE
    assert ran == [(1, 2), {"key": 3}, False]


def test_any_failure_of_a_finalize_raises_an_exception() -> None:
    def fail() -> None:
        raise KeyError("missing")

    with pytest.raises(KeyError, match="missing"):
        ThreadedFinalize(timedelta(seconds=10), fail)(STATE)


def test_a_finalize_that_hangs_is_given_up() -> None:
    hang = threading.Event()
    line = r"^ThreadedFinalize: Event\.wait on rank 1 did not end within 0\.05 s; give it a longer timeout"
    with pytest.raises(TimeoutError, match=line):
        ThreadedFinalize(timedelta(milliseconds=50), hang.wait)(STATE)
    hang.set()


def test_a_finalize_uses_the_device_of_the_thread_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[tuple[str, int]] = []
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 3,
        set_device=lambda device: chosen.append((threading.current_thread().name, device)),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    ThreadedFinalize(timedelta(seconds=10), lambda: None)(STATE)
    assert chosen == [("softrun-finalize", 3)]


# Abort


class Engine:
    """The interface of transformer_engine: user buffers, and FP8's state of all layers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.buffers, self.scales = ["a buffer"], {"layer": 0.5}
        monkeypatch.setitem(
            sys.modules, "transformer_engine.pytorch.module.base", SimpleNamespace(destroy_ub=self.buffers.clear)
        )
        state = SimpleNamespace(reset=self.scales.clear)
        monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.fp8", SimpleNamespace(FP8GlobalStateManager=state))


def test_what_transformer_engine_keeps_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    assert AbortTransformerEngine()(STATE) is STATE, "it was not imported"
    engine = Engine(monkeypatch)
    assert AbortTransformerEngine()(STATE) is STATE
    assert (engine.buffers, engine.scales) == ([], {})


@pytest.mark.parametrize("by_variable", [False, True])
def test_the_flight_recorder_is_written_for_each_iteration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by_variable: bool
) -> None:
    recorder = SimpleNamespace(_dump_fr_trace=lambda *, includeStackTraces: f"stacks: {includeStackTraces}".encode())  # noqa: N803 - torch's
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", recorder)
    if by_variable:
        monkeypatch.setenv("NVRX_FR_TRACE_PATH", str(tmp_path))
    abort = AbortTorchDistributed(None if by_variable else str(tmp_path))
    for iteration in (0, 3):
        abort(at(iteration=iteration, initial_rank=5))
    written = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("rank*")}
    assert written == {"iter_0/rank_5": "stacks: False", "iter_3/rank_5": "stacks: False"}


def test_a_recorder_that_cannot_be_written_does_not_stop_the_abort(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    recorder = SimpleNamespace(_dump_fr_trace=lambda **_: b"")
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", recorder)
    assert AbortTorchDistributed(str(tmp_path / "file"))(STATE) is STATE
    assert "the flight recorder's records could not be written" in caplog.text


# Attribution


def test_a_record_is_read_from_its_text() -> None:
    record = InterruptionRecord(7, Interruption.SOFT_TIMEOUT)
    assert InterruptionRecord.from_str(str(record)) == record
    with pytest.raises(ValueError, match="'rank=7' is not the text of an InterruptionRecord"):
        InterruptionRecord.from_str("rank=7")
    records = [record, InterruptionRecord(1, Interruption.EXCEPTION), InterruptionRecord(0, Interruption.EXCEPTION)]
    assert format_interruption_records(records) == "EXCEPTION on ranks 0, 1; SOFT_TIMEOUT on rank 7"


# Nested restarters


def test_an_outer_system_reads_the_phases(capsys: pytest.CaptureFixture[str]) -> None:
    state = at(rank=0, active_rank=0)
    callbacks = [
        (NestedRestarterHandlingCompleted(), state),
        (NestedRestarterHandlingStarting(), state),
        (NestedRestarterHandlingStarting(), None),
        (NestedRestarterHandlingProcessing(), state),
        (NestedRestarterHandlingCompleted(), replace(state, iteration=1, active_rank=None)),
        (NestedRestarterFinalized(), replace(state, iteration=1)),
        (NestedRestarterAborted(), replace(state, iteration=1)),
    ]
    for callback, given_state in callbacks:
        callback(given_state)  # type: ignore[operator]
    lines = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("[NestedRestarter] name=[InProcess] ") for line in lines] == [
        "state=initialize rank=0 active_rank=0 world_size=4 iteration=0 round=7",
        "state=handling stage=starting rank=0 active_rank=0 world_size=4 iteration=0 round=7",
        "state=handling stage=starting",
        "state=handling stage=processing rank=0 active_rank=0 world_size=4 iteration=0 round=7",
        "state=handling stage=completed rank=0 active_rank=None world_size=4 iteration=1 round=7",
        "state=finalized rank=0 active_rank=0 world_size=4 iteration=1 round=7",
        "state=aborted rank=0 active_rank=0 world_size=4 iteration=1 round=7",
    ]


def test_one_rank_reports_for_all_to_a_logger_of_ones_own(caplog: pytest.LogCaptureFixture) -> None:
    own = logging.getLogger("mine")
    caplog.set_level(logging.INFO, "mine")
    NestedRestarterFinalized(logger=own)(at(rank=1))
    NestedRestarterFinalized(logger=own, special_rank=2)(at(rank=1))
    assert not caplog.messages
    NestedRestarterFinalized("finalized", None, own, None)(at(rank=1))
    NestedRestarterFinalized(logger=own, special_rank=1)(at(rank=1))
    assert len(caplog.messages) == 2


# Arguments


@pytest.mark.parametrize(
    ("make", "error", "line"),
    [
        (
            lambda: ThreadedFinalize(5.0, print),  # type: ignore[arg-type]
            TypeError,
            "ThreadedFinalize: timeout is 5.0 (float); pass a datetime.timedelta, like timedelta(seconds=5.0)",
        ),
        (
            lambda: CudaHealthCheck(timedelta(0)),
            ValueError,
            "CudaHealthCheck: timeout is 0 s; pass a timedelta above 0",
        ),
        (
            lambda: ThreadedFinalize(timedelta(1), None),  # type: ignore[arg-type]
            TypeError,
            "ThreadedFinalize: fn is None (NoneType), which cannot be called; pass a function",
        ),
        (
            lambda: ThreadedFinalize(timedelta(1), print, 3),  # type: ignore[arg-type]
            TypeError,
            "ThreadedFinalize: args is 3 (int); pass a tuple, like (value,)",
        ),
        (
            lambda: ThreadedFinalize(timedelta(1), print, (), [1]),  # type: ignore[arg-type]
            TypeError,
            "ThreadedFinalize: kwargs is [1] (list); pass a dict or None",
        ),
        (lambda: MaxActiveWorldSize(0), ValueError, "MaxActiveWorldSize: max_active_world_size is 0; pass 1 or more"),
        (
            lambda: ActiveWorldSizeDivisibleBy(2.0),  # type: ignore[arg-type]
            TypeError,
            "ActiveWorldSizeDivisibleBy: divisor is 2.0 (float); pass a whole number, 1 or more",
        ),
        (lambda: RetryController(0), ValueError, "RetryController: max_iterations is 0; pass 1 or more"),
        (
            lambda: RetryController(None, min_world_size=True),
            TypeError,
            "RetryController: min_world_size is True (bool); pass a whole number, 1 or more",
        ),
        (lambda: FaultCounter(-1), ValueError, "FaultCounter: max_rank_faults is -1; pass 0 or more"),
        (
            lambda: FilterCountGroupedByKey(8, bool),  # type: ignore[arg-type]
            TypeError,
            "FilterCountGroupedByKey: key_or_fn is 8 (int), which cannot be called; pass a text or a function of a",
        ),
        (
            lambda: FilterCountGroupedByKey("node", 8),  # type: ignore[arg-type]
            TypeError,
            "FilterCountGroupedByKey: condition is 8 (int), which cannot be called; pass a function of a group's size",
        ),
        (
            lambda: FilterCountGroupedByKey("node", bool, 60),  # type: ignore[arg-type]
            TypeError,
            "FilterCountGroupedByKey: timeout is 60 (int); pass a datetime.timedelta, like timedelta(seconds=60)",
        ),
        (
            lambda: NestedRestarterAborted(special_rank=-1),
            ValueError,
            "NestedRestarterAborted: special_rank is -1; pass 0 or more",
        ),
        (
            lambda: Compose(ShiftRanks),  # type: ignore[arg-type]
            TypeError,
            "Compose: ShiftRanks is a class; pass an instance, ShiftRanks(…)",
        ),
        (
            lambda: Compose(None),  # type: ignore[arg-type]
            TypeError,
            "Compose: a member is None (NoneType), which cannot be called; pass callbacks",
        ),
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_given(
    make: Callable[[], object], error: type[Exception], line: str
) -> None:
    with pytest.raises(error) as refused:
        make()
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)
