"""The callbacks around a restarted function. Quotes are of NVIDIA's usage guide to in-process restart."""

from __future__ import annotations

import copy
import logging
import pickle
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softrun.runtime.abort import Abort
from softrun.runtime.inprocess import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    Completion,
    Compose,
    CudaHealthCheck,
    FaultCounter,
    FillGaps,
    FilterCountGroupedByKey,
    Finalize,
    HealthCheck,
    HealthCheckError,
    Initialize,
    MaxActiveWorldSize,
    NestedRestarterAborted,
    NestedRestarterFinalized,
    NestedRestarterHandlingCompleted,
    NestedRestarterHandlingProcessing,
    NestedRestarterHandlingStarting,
    RankAssignment,
    RankFilter,
    RestartAbort,
    RetryController,
    Seat,
    ShiftRanks,
    State,
    Terminate,
    ThreadedFinalize,
    settle,
)

Table = tuple[Seat, ...]

STATE = State(
    rank=1,
    world_size=4,
    active_rank=1,
    active_world_size=3,
    initial_rank=1,
    initial_world_size=4,
    iteration=0,
    round=7,
)


def at(**changes: Any) -> State:
    return replace(STATE, **changes)


# Tables of ranks. `initial_rank` stands for the process: survivors have that of their rank, newcomers 100 and more.


def seat(rank: int, *, newcomer: bool = False) -> Seat:
    process = 100 + rank if newcomer else rank
    node = rank // 8
    return Seat(
        rank=rank,
        newcomer=newcomer,
        initial_rank=process,
        node=node,
        local_rank=rank % 8,
        hostname=f"host{node}",
    )


def table(size: int, lost: AbstractSet[int] = frozenset(), replaced: AbstractSet[int] = frozenset()) -> Table:
    survivors = [seat(rank) for rank in range(size) if rank not in lost]
    return (*survivors, *(seat(rank, newcomer=True) for rank in sorted(replaced)))


def processes(seats: Table) -> list[int]:
    """Who has rank 0, 1, 2 and so on."""
    staying = sorted((s for s in seats if not s.discarded), key=lambda s: s.rank)
    assert [s.rank for s in staying] == list(range(len(staying)))
    return [s.initial_rank for s in staying]


def active(seats: Table) -> list[int]:
    return sorted(s.rank for s in seats if s.active)


def discarded(seats: Table) -> list[int]:
    return sorted(s.initial_rank for s in seats if s.discarded)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Some ranks were lost; newcomers have been given lost ranks first, then numbers above."""
    size = draw(st.integers(1, 24))
    lost = draw(st.sets(st.integers(0, size - 1)))
    numbers = [*sorted(lost), *range(size, size + 4)]
    count = draw(st.integers(0 if len(lost) < size else 1, len(numbers)))
    seats = table(size, lost, set(numbers[:count]))
    return tuple(draw(st.permutations(seats)))


# State


def test_a_rank_without_an_active_rank_is_a_reserve() -> None:
    assert at(active_rank=0).is_active
    assert not at(active_rank=None).is_active


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
    assert Compose(seen.append)() is None, "an Abort may be called without a state"
    assert Compose()(STATE) is STATE


class Both(Initialize, Finalize):
    def __call__(self, state: State) -> None: ...


@pytest.mark.parametrize(
    ("members", "family"),
    [
        ((ShiftRanks(), ActivateAllRanks()), RankAssignment),
        ((ShiftRanks(), lambda seats: seats), RankAssignment),
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
        assert again.callbacks == composed.callbacks
        assert isinstance(again, RankAssignment)
    assert repr(composed) == "Compose(ShiftRanks(), MaxActiveWorldSize(max_active_world_size=2))"


# Rank assignment


def test_a_group_of_8_with_a_lost_rank_is_terminated_and_the_others_shift_left() -> None:
    """ "If any rank within a group of 8 is unhealthy or terminated, the entire group is terminated. The remaining
    healthy ranks are then reassigned by shifting left to close any gaps, forming a new sequence of consecutive integers
    from 0 up to the updated world size." """
    rank_assignment = Compose(
        ActivateAllRanks(),
        ShiftRanks(),
        FilterCountGroupedByKey(
            key_or_fn=lambda state: state.rank // 8,
            condition=lambda count: count == 8,
        ),
    )
    after = settle(rank_assignment, table(24, lost={9}))
    assert processes(after) == [*range(8), *range(16, 24)]
    assert active(after) == list(range(16))
    assert discarded(after) == [8, *range(10, 16)]
    assert [s.initial_rank for s in after[16:]] == [8, *range(10, 16)], (
        "who is discarded stays in the table, at its end"
    )


def test_a_group_whose_lost_rank_was_replaced_is_whole() -> None:
    filtered = Compose(ShiftRanks(), FilterCountGroupedByKey("hostname", lambda count: count == 8))
    assert len(processes(settle(filtered, table(24, lost={9}, replaced={9})))) == 24


@pytest.mark.parametrize(
    ("m", "n", "left", "expected"), [(4, 10, 16, 8), (4, 12, 16, 12), (4, 100, 15, 12), (1, 2, 9, 2)]
)
def test_the_largest_multiple_of_m_not_greater_than_n_is_active(m: int, n: int, left: int, expected: int) -> None:
    """ "shifts all healthy ranks to the left to fill gaps created by terminated ranks, and then ensures that the active
    world size visible to the wrapped function is the largest multiple of M that is not greater than N. The remaining
    healthy ranks would be inactive and serve as a reserve." """
    rank_assignment = Compose(
        ActiveWorldSizeDivisibleBy(m),
        MaxActiveWorldSize(n),
        ShiftRanks(),
    )
    after = settle(rank_assignment, table(left + 2, lost={0, 3}))
    assert processes(after) == [1, 2, *range(4, left + 2)]
    assert active(after) == list(range(expected))
    assert not discarded(after)


def test_reserves_are_activated_if_active_ranks_were_terminated() -> None:
    """As the guide says: "in a subsequent restart iteration"."""
    rank_assignment = Compose(MaxActiveWorldSize(4), ShiftRanks())
    first = settle(rank_assignment, table(6))
    assert active(first) == [0, 1, 2, 3]
    second = settle(rank_assignment, tuple(s for s in first if s.rank not in (1, 2)))
    assert processes(second) == [0, 3, 4, 5]
    assert active(second) == [0, 1, 2, 3]


def test_shift_ranks_closes_the_gaps() -> None:
    assert processes(ShiftRanks()(table(8, lost={1, 4, 5}))) == [0, 2, 3, 6, 7]
    assert processes(ShiftRanks()(table(4, lost={0}, replaced={0, 4}))) == [1, 2, 3, 100, 104]


def test_fill_gaps_moves_the_last_into_the_gaps() -> None:
    assert processes(FillGaps()(table(8, lost={1, 4, 5}))) == [0, 6, 2, 3, 7]
    assert processes(FillGaps()(table(8, lost={1, 4, 5}, replaced={1}))) == [0, 6, 2, 3, 7, 101]
    assert processes(FillGaps()(table(8, lost={1, 4, 5}, replaced={1, 4, 5}))) == [0, 101, 2, 3, 104, 105, 6, 7]


def test_fill_gaps_gives_rank_0_to_a_survivor() -> None:
    assert processes(FillGaps()(table(4, lost={0}))) == [3, 1, 2]
    assert processes(FillGaps()(table(4, lost={0}, replaced={0}))) == [1, 100, 2, 3], "the lowest one moves"


@given(tables(), st.sampled_from([ShiftRanks(), FillGaps()]))
def test_every_process_has_a_rank_of_its_own_and_rank_0_is_a_survivor(
    before: Table, assignment: RankAssignment
) -> None:
    after = settle(assignment, before)
    assert sorted(processes(after)) == sorted(s.initial_rank for s in before)
    assert [s.rank for s in after] == list(range(len(before)))
    assert active(after) == list(range(len(before)))
    assert after[0].newcomer == all(s.newcomer for s in before)
    assert settle(assignment, after) == after, "nothing was lost since, so nothing moves"


@given(tables())
def test_survivors_keep_their_order_when_ranks_shift(before: Table) -> None:
    after = ShiftRanks()(before)
    assert [s.newcomer for s in after] == sorted(s.newcomer for s in before)
    survivors = [s.initial_rank for s in after if not s.newcomer]
    assert survivors == sorted(survivors), "a survivor's initial rank is its rank before"


@given(tables())
def test_filling_gaps_keeps_as_many_ranks_as_possible(before: Table) -> None:
    after = FillGaps()(before)
    survivors = [s.rank for s in before if not s.newcomer]
    could_stay = [rank for rank in survivors if rank < len(before)]
    must_give_up_for_rank_0 = bool(survivors) and 0 not in survivors and len(could_stay) == len(survivors)
    stayed = [s for s in after if not s.newcomer and s.rank == s.initial_rank]
    assert len(stayed) == len(could_stay) - must_give_up_for_rank_0


@given(tables(), st.integers(1, 30), st.integers(1, 8), st.sampled_from([ShiftRanks(), FillGaps()]))
def test_active_ranks_come_before_reserves(before: Table, n: int, m: int, ranks: RankAssignment) -> None:
    expected = min(n, len(before)) // m * m
    assignment = Compose(ActiveWorldSizeDivisibleBy(m), MaxActiveWorldSize(n), ranks)
    if expected:
        assert active(settle(assignment, before)) == list(range(expected))
    else:
        with pytest.raises(ValueError, match="is active"):
            settle(assignment, before)


@given(tables(), st.integers(1, 8))
def test_a_group_is_kept_or_discarded_as_a_whole(before: Table, size: int) -> None:
    filtered = FilterCountGroupedByKey("node", lambda count: count >= size)(before)
    for node in {s.node for s in before}:
        group = [s for s in filtered if s.node == node]
        assert {s.discarded for s in group} == {len(group) < size}
    assert FilterCountGroupedByKey("node", lambda count: count >= size)(filtered) == filtered, "discarded is discarded"


def test_who_is_discarded_already_does_not_count() -> None:
    nodes = FilterCountGroupedByKey("node", lambda count: count == 8)
    pairs_of_nodes = FilterCountGroupedByKey(lambda one: one.node // 2, lambda count: count >= 15)
    before = table(32, lost={9})
    assert processes(settle(Compose(ShiftRanks(), pairs_of_nodes), before)) == [*range(9), *range(10, 32)]
    assert processes(settle(Compose(ShiftRanks(), pairs_of_nodes, nodes), before)) == list(range(16, 32))


def test_the_deprecated_name_still_works() -> None:
    assert RankFilter is RankAssignment


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        (ActivateAllRanks(), "nobody has rank 1, among 7 ranks; list ShiftRanks() or FillGaps() before"),
        (
            Compose(FilterCountGroupedByKey("node", lambda count: count > 7), ShiftRanks()),
            "none of 7 ranks is active (7 discarded, 0 reserves); loosen its condition or divisor",
        ),
        (Compose(ActiveWorldSizeDivisibleBy(8), ShiftRanks()), "none of 7 ranks is active (0 discarded, 7 reserves)"),
        (
            lambda seats: seats[1:],
            "it left out the process with initial rank 0; set discarded=True for who shall leave",
        ),
        (lambda seats: (*seats, seat(9)), "it added or altered the process with initial rank 9"),
        (lambda seats: 7, "it returned a int; return the tuple of all seats, changed by dataclasses.replace"),
        (lambda seats: [replace(s, rank=s.rank // 2) for s in seats], "two have rank 1, among 7 ranks"),
        (
            Compose(lambda seats: [replace(s, active=s.rank != 3) for s in seats], ShiftRanks()),
            "rank 3 is a reserve but rank 6 is active; list what limits the size before ShiftRanks() or FillGaps()",
        ),
    ],
)
def test_an_unusable_table_is_refused_in_one_line(assignment: Callable[[Table], Table], line: str) -> None:
    with pytest.raises(ValueError, match="rank assignment") as refused:
        settle(assignment, table(8, lost={1}))
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_assignment_that_returns_nothing_changes_nothing() -> None:
    assert settle(lambda seats: None, table(3)) == table(3)


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


# Health check


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
    with pytest.raises(HealthCheckError, match=r"did not end its work within 0\.2 s; it hangs, or timeout must be"):
        check_with(monkeypatch, FakeCuda(2.0))


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


# Nested restarters


def test_an_outer_system_reads_the_phases(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.setLevel(logging.INFO)
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
    assert [message.removeprefix("[NestedRestarter] name=[InProcess] ") for message in caplog.messages] == [
        "state=initialize rank=0 active_rank=0 world_size=4 iteration=0 round=7",
        "state=handling_start rank=0 active_rank=0 world_size=4 iteration=0 round=7",
        "state=handling_start",
        "state=handling_processing rank=0 active_rank=0 world_size=4 iteration=0 round=7",
        "state=handling_completed rank=0 active_rank=None world_size=4 iteration=1 round=7",
        "state=finalized rank=0 active_rank=0 world_size=4 iteration=1 round=7",
        "state=aborted rank=0 active_rank=0 world_size=4 iteration=1 round=7",
    ]


def test_one_rank_reports_for_all(caplog: pytest.LogCaptureFixture) -> None:
    NestedRestarterFinalized()(at(rank=1))
    NestedRestarterFinalized(special_rank=2)(at(rank=1))
    assert not caplog.messages
    NestedRestarterFinalized(special_rank=None)(at(rank=1))
    NestedRestarterFinalized(special_rank=1)(at(rank=1))
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
            lambda: FilterCountGroupedByKey("host", bool),
            ValueError,
            "FilterCountGroupedByKey: key_or_fn is 'host'; pass one of rank, newcomer, active, discarded, initial_rank",
        ),
        (
            lambda: FilterCountGroupedByKey(8, bool),  # type: ignore[arg-type]
            TypeError,
            "FilterCountGroupedByKey: key_or_fn is 8 (int), which cannot be called; pass the name of an attribute",
        ),
        (
            lambda: FilterCountGroupedByKey("node", 8),  # type: ignore[arg-type]
            TypeError,
            "FilterCountGroupedByKey: condition is 8 (int), which cannot be called; pass a function of a group's size",
        ),
        (
            lambda: NestedRestarterAborted(-1),
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
