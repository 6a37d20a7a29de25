"""The wrapper's promises on real processes, where the test is the agent. Quotes are of NVIDIA's usage guide."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import Me
from torch.nn.parallel import DistributedDataParallel
from wrapped_ranks import Job, job, log_debug, meet

from fake_agent import wait_until
from softrun.runtime import World, inprocess
from softrun.runtime.channel import ENVIRONMENT_VARIABLE
from softrun.runtime.inprocess import (
    ActiveWorldSizeDivisibleBy,
    CallWrapper,
    Compose,
    MaxActiveWorldSize,
    RestartRequest,
    Seat,
    ShiftRanks,
    State,
    Wrapper,
)

SHORT_S = 0.3  # for what must not happen


@pytest.fixture(name="job")
def a_job(tmp_path: Path) -> Iterator[Job]:
    with job(tmp_path) as made:
        yield made


def sit() -> None:
    """As in a call that only a signal ends."""
    time.sleep(3600)


def until_requested(call: CallWrapper) -> None:
    """Until a thread waits for the block to end."""
    while not call._call.session.interrupt._requested:
        time.sleep(0.005)


def reverse(seats: tuple[Seat, ...]) -> tuple[Seat, ...]:
    """Give the process that came last number 0."""
    return tuple(replace(seat, rank=len(seats) - 1 - seat.initial_rank) for seat in seats)


class Record:
    """Callbacks that note that they were called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getitem__(self, name: str) -> Callable[[object], None]:
        return lambda _: self.calls.append(name)


# The loop


def test_it_is_called_again_with_the_same_set_of_input_arguments_and_its_value_is_returned(job: Job) -> None:
    def work(me: Me) -> None:
        seen = []

        @Wrapper()
        def train(items: list[int], call: CallWrapper, *, scale: object) -> object:
            seen.append((items, scale))
            items.append(call.iteration)
            if call.iteration == 2:
                return scale
            meet(me)
            if call.state.rank == call.iteration:
                raise ValueError("the loss is not a number")
            sit()
            return None

        items, scale = [10], object()
        assert train(items, scale=scale) is scale
        assert all(one is items and other is scale for one, other in seen)
        me.say(items)

    workers = job.begin(work, 2)
    for _ in range(2):
        job.meet()
        job.restart()
    assert [worker.says() for worker in workers] == [[10, 0, 1, 2]] * 2


def test_the_order_of_operations_is_the_guides(job: Job) -> None:
    """ "while True: initialize(); health_check(); try: ...; except: abort(); finalize(); health_check();
    iteration_barrier(); rank_assignment()", on the rank that failed as on the others."""

    def work(me: Me) -> None:
        did = Record()
        names = ("initialize", "finalize", "health_check", "rank_assignment", "completion", "terminate")

        def abort(state: State | None) -> None:
            assert threading.current_thread() is not threading.main_thread(), '"from a separate Python thread"'
            assert state is not None
            did.calls.append(f"abort {state.iteration}")

        @Wrapper(abort=abort, **{name: did[name] for name in names})  # type: ignore[arg-type]
        def train(state: State) -> None:
            did.calls.append(f"function {state.iteration}")
            if state.iteration == 0:
                meet(me)
            if state.iteration == 0 and state.rank == 1:
                raise ValueError("the loss is not a number")
            if state.iteration == 0:
                sit()

        train()
        me.say(did.calls)

    workers = job.begin(work, 2)
    job.meet()
    job.restart()
    expected = [
        *("rank_assignment", "initialize", "health_check", "function 0"),
        *("abort 0", "finalize", "health_check"),
        *("rank_assignment", "initialize", "health_check", "function 1"),
        "completion",
    ]
    assert workers[0].says() == expected
    assert workers[1].says() == [name for name in expected if name != "rank_assignment"], "it runs on one rank for all"


def test_entering_and_exiting_act_as_distributed_synchronization_points(job: Job) -> None:
    def work(me: Me) -> None:
        me.hear()

        def finalize(state: State) -> None:
            me.say("finalize")
            me.hear()

        @Wrapper(finalize=finalize)
        def train(state: State) -> None:
            me.say("function")
            if state.iteration == 0 and state.rank == 0:
                raise ValueError("the loss is not a number")
            if state.iteration == 0:
                sit()
            me.hear()

        train()
        me.say("returned")

    first, second = workers = job.begin(work, 2)
    first.tell("enter")
    assert first.says_nothing(SHORT_S)
    second.tell("enter")
    assert [worker.says() for worker in workers] == ["function"] * 2
    job.restart()
    assert [worker.says() for worker in workers] == ["finalize"] * 2
    first.tell("end your finalize")
    assert first.says_nothing(SHORT_S), "iteration_barrier"
    second.tell("end your finalize")
    assert [worker.says() for worker in workers] == ["function"] * 2
    first.tell("return")
    assert first.says_nothing(SHORT_S), "completion_barrier"
    second.tell("return")
    assert [worker.says() for worker in workers] == ["returned"] * 2


def test_a_second_call_synchronizes_as_the_first_did(job: Job) -> None:
    def work(me: Me) -> None:
        @Wrapper(rank_assignment=lambda seats: seats)
        def train(what: str) -> None:
            me.say(what)
            me.hear()

        train("train")
        train("evaluate")
        me.say("returned")

    first, second = workers = job.begin(work, 2)
    for what in ("train", "evaluate"):
        assert [worker.says() for worker in workers] == [what] * 2
        first.tell()
        assert first.says_nothing(SHORT_S)
        second.tell()
    assert [worker.says() for worker in workers] == ["returned"] * 2


# Ending the function


def test_the_termination_procedure_is_not_launched_in_an_atomic_block(job: Job) -> None:
    """ "The termination procedure won't be launched if the main thread is in CallWrapper.atomic code block"."""

    def work(me: Me) -> None:
        aborted = threading.Event()
        did = Record()

        @Wrapper(abort=lambda _: aborted.set())
        def train(call: CallWrapper) -> None:
            if call.iteration:
                return
            with call.atomic():
                with call.atomic():
                    me.say("saving")
                    until_requested(call)
                    assert not aborted.wait(SHORT_S)
                did.calls.append("a block inside was left")
                assert not aborted.wait(SHORT_S)
                did.calls.append("saved")
            did.calls.append("went on")

        train()
        assert aborted.is_set()
        me.say(did.calls)

    (worker,) = job.begin(work, 1)
    assert worker.says() == "saving"
    job.form([worker])
    assert worker.says() == ["a block inside was left", "saved"]


def test_the_main_thread_does_not_enter_an_atomic_block_once_termination_is_in_progress(job: Job) -> None:
    """ "the main thread won't enter into CallWrapper.atomic code block if termination procedure is already in
    progress"."""

    def work(me: Me) -> None:
        begun, entered = threading.Event(), threading.Event()

        def abort(state: object) -> None:
            begun.set()
            entered.wait(SHORT_S)

        @Wrapper(abort=abort)
        def train(call: CallWrapper) -> None:
            if call.iteration:
                with call.atomic():
                    return
            me.say("training")
            begun.wait()
            with call.atomic():
                entered.set()

        train()
        me.say(entered.is_set())

    (worker,) = job.begin(work, 1)
    assert worker.says() == "training"
    job.form([worker])
    assert worker.says() is False


def test_logging_with_debug_level_shows_the_location_where_the_exception_was_suppressed(job: Job) -> None:
    def work(me: Me) -> None:
        log_debug()

        def suppress_around(wait: Callable[[], object]) -> None:
            with contextlib.suppress(BaseException):
                wait()

        def in_an_atomic_block(call: CallWrapper) -> None:
            with call.atomic():
                me.say("ready")
                until_requested(call)

        @Wrapper()
        def train(call: CallWrapper) -> None:
            if call.iteration == 0:
                suppress_around(lambda: in_an_atomic_block(call))
                suppress_around(sit)
                suppress_around(sit)
                sit()

        train()
        me.say("left it")

    (worker,) = job.begin(work, 1)
    assert worker.says() == "ready"
    job.form([worker])
    assert worker.says() == "left it"
    lines = [line for line in worker.log.splitlines() if "a restart was suppressed" in line]
    assert len(lines) == 3
    assert all(line.startswith("DEBUG softrun.runtime") for line in lines)
    place = rf"{re.escape(__file__)}:\d+ in "
    for line, sat in zip(lines, ("in_an_atomic_block", "sit", "sit"), strict=True):
        way = rf"raised at {place}train > {place}suppress_around > .*{place}{sat}; going on at {place}train > {place}"
        assert re.search(way, line)


def test_exception_handlers_and_context_managers_run_undisturbed(job: Job) -> None:
    """ "gives the wrapped function an opportunity to properly clean up resources by calling all encountered exception
    handlers, context managers' __exit__ methods etc."."""

    def work(me: Me) -> None:
        did = Record()

        class Resource:
            def __enter__(self) -> None: ...

            def __exit__(self, *_: object) -> None:
                time.sleep(SHORT_S)  # longer than it takes to raise it again
                did.calls.append("released")

        @Wrapper()
        def train(call: CallWrapper) -> None:
            if call.iteration:
                return
            try:
                with Resource():
                    me.say("training")
                    sit()
            except BaseException as error:
                time.sleep(SHORT_S)
                did.calls.append(type(error).__name__)
                raise
            finally:
                time.sleep(SHORT_S)
                did.calls.append("finally")

        train()
        me.say((RestartRequest.__mro__[1] is BaseException, did.calls))

    (worker,) = job.begin(work, 1)
    assert worker.says() == "training"
    job.form([worker])
    assert worker.says() == (True, ["released", "RestartRequest", "finally"]), '"a direct subclass of BaseException"'


def test_an_abort_has_ended_before_finalize_begins(job: Job) -> None:
    """Also where the function ends of itself, since the abort has freed it."""

    def work(me: Me) -> None:
        freed, finalizing = threading.Event(), threading.Event()
        overlapped = []

        def abort(state: object) -> None:
            freed.set()
            overlapped.append(finalizing.wait(SHORT_S))

        @Wrapper(abort=abort, finalize=lambda _: finalizing.set())
        def train(call: CallWrapper) -> None:
            if call.iteration == 0:
                me.say("training")
                freed.wait()
                raise ConnectionError("the group was aborted")

        train()
        me.say(overlapped)

    (worker,) = job.begin(work, 1)
    assert worker.says() == "training"
    job.form([worker])
    assert worker.says() == [False]


# Failures of callbacks


class Stop(BaseException):
    """As RestartAbort is, not an Exception."""


@pytest.mark.parametrize("error", [ValueError, Stop])
@pytest.mark.parametrize("callback", ["initialize", "completion"])
def test_a_standard_exception_triggers_another_restart_while_a_base_exception_terminates_the_wrapper(
    job: Job, callback: str, error: type[BaseException]
) -> None:
    def work(me: Me) -> None:
        did = Record()

        def fail(state: State) -> None:
            if state.iteration == 0:
                raise error("preconditions are not met")

        @Wrapper(**{callback: fail}, terminate=did["terminate"])  # type: ignore[arg-type]
        def train(call: CallWrapper) -> int:
            return call.iteration

        try:
            me.say((train(), did.calls))
        except BaseException as raised:
            me.say((repr(raised), did.calls))

    (worker,) = job.begin(work, 1)
    if error is ValueError:
        fault = job.restart()
        assert "preconditions are not met" in fault.text
        assert worker.says() == (1, [])
    else:
        assert worker.says() == ("Stop('preconditions are not met')", ["terminate"])


@pytest.mark.parametrize("callback", ["finalize", "health_check", "the first health_check"])
def test_a_failure_of_finalize_or_of_the_health_check_is_reraised(job: Job, callback: str) -> None:
    """ "in this case the health check is skipped, exception is reraised by the Wrapper"."""

    def work(me: Me) -> None:
        did = Record()
        first = callback.startswith("the first")
        cause = KeyError("the context is corrupted")

        def fail(state: State) -> None:
            did.calls.append("fail")
            if first or state.fn_exception is not None:
                raise ValueError("unfit") from cause

        callbacks: dict[str, Any] = {"health_check": did["health_check"], callback.rpartition(" ")[2]: fail}

        @Wrapper(**callbacks, terminate=did["terminate"])
        def train() -> None:
            did.calls.append("function")
            raise RuntimeError("the loss is not a number")

        with pytest.raises(ValueError, match="unfit") as raised:
            train()
        assert raised.value.__cause__ is cause
        me.say(did.calls)

    (worker,) = job.begin(work, 1)
    assert (
        worker.says()
        == {
            "finalize": ["health_check", "function", "fail", "terminate"],
            "health_check": ["fail", "function", "fail", "terminate"],
            "the first health_check": ["fail", "terminate"],
        }[callback]
    )


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_abort_that_fails_does_not_keep_the_function_from_being_interrupted(
    job: Job, error: type[BaseException]
) -> None:
    def work(me: Me) -> None:
        def abort(state: object) -> None:
            raise error("a bug of the abort")

        @Wrapper(abort=abort)
        def train(call: CallWrapper) -> int:
            me.say("training")
            if call.iteration == 0:
                sit()
            return call.iteration

        me.say(train())

    (worker,) = job.begin(work, 1)
    assert worker.says() == "training"
    job.form([worker])
    assert worker.says() == "training"
    assert worker.says() == 1
    if error is ValueError:
        assert "a bug of the abort" in worker.log


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Stop("enough")])
def test_a_base_exception_of_the_function_ends_the_wrapper_on_this_rank(job: Job, error: BaseException) -> None:
    """And what `terminate` raises does not hide it."""

    def work(me: Me) -> None:
        terminated = []

        def terminate(state: State) -> None:
            terminated.append(state.fn_exception)
            raise ValueError("a bug of the callback")

        @Wrapper(terminate=terminate)
        def train(call: CallWrapper) -> int:
            if call.state.world_size == 1:
                return call.iteration
            me.say("training")
            if call.state.rank == 0:
                raise error
            sit()
            return -1

        try:
            me.say(train())
        except BaseException as raised:
            me.say(raised is error and terminated == [error])

    first, second = job.begin(work, 2)
    assert second.says() == "training"
    assert [first.says(), first.says()] == ["training", True]
    assert "a bug of the callback" in first.log
    job.lose(first)
    assert second.says() == 1


# Faults


def test_a_fault_is_told_with_its_traceback_in_the_log_of_every_rank(job: Job) -> None:
    def work(me: Me) -> None:
        @Wrapper()
        def train(state: State) -> int:
            if state.iteration == 0 and state.rank == 1:
                raise ValueError("the loss is not a number")
            if state.iteration == 0:
                sit()
            return state.iteration

        me.say(train())

    workers = job.begin(work, 2)
    job.restart()
    for rank, worker in enumerate(workers):
        assert worker.says() == 1
        restarts = worker.log.partition(f"worker {rank} restarts after a fault of rank 1 of world 1: ")[2]
        assert re.match(r"Traceback .* in train\n.*ValueError: the loss is not a number\n", restarts, re.DOTALL)


def test_an_exception_that_looks_like_a_lost_peers_is_told_in_the_log(job: Job) -> None:
    """Nobody else tells what happened where no peer was lost."""

    def work(me: Me) -> None:
        @Wrapper()
        def train(call: CallWrapper) -> int:
            if call.iteration == 0:
                raise ConnectionError("the data cannot be downloaded")
            return call.iteration

        me.say(train())

    (worker,) = job.begin(work, 1)
    wait_until(lambda: worker.status.broken_round == 1, "a broken world")
    assert worker.status.fault is None
    job.form([worker])
    assert worker.says() == 1
    told = worker.log.partition("worker 0 restarts after an exception of its own\n")[2]
    assert re.match(r"Traceback .* in train\n.*ConnectionError: the data cannot be downloaded\n", told, re.DOTALL)


def test_concurrent_faults_of_two_ranks_are_one_restart(job: Job) -> None:
    def work(me: Me) -> None:
        seen: list[object] = []

        @Wrapper(initialize=lambda state: seen.append(repr(state.fn_exception)))
        def train(state: State) -> int:
            if state.iteration == 0:
                raise ValueError(f"on rank {state.rank}")
            return state.iteration

        me.say((train(), seen))

    workers = job.begin(work, 2)
    job.restart(count=2)
    assert [worker.says() for worker in workers] == [
        (1, ["None", f"ValueError('on rank {rank}')"]) for rank in range(2)
    ]


def test_a_rank_that_fails_to_synchronize_within_the_completion_timeout_is_a_failure_for_all(job: Job) -> None:
    """ "triggering a restart of the wrapped function on all distributed ranks": also on one that came just too late."""

    def work(me: Me) -> None:
        @Wrapper(completion_timeout=timedelta(seconds=SHORT_S))
        def train(state: State) -> int:
            me.say("training")
            if state.iteration == 0 and state.rank == 1:
                me.hear()
            return state.iteration

        me.say(train())

    workers = job.begin(work, 2)
    assert [worker.says() for worker in workers] == ["training"] * 2
    (fault,) = job.told_faults()
    assert f"not all ranks were there within {SHORT_S:g} s" in fault.text
    workers[1].tell("return")
    job.restart(2)
    assert [worker.says() for worker in workers] == ["training"] * 2
    assert [worker.says() for worker in workers] == [1] * 2


@pytest.mark.parametrize("at", ["the first collective", "the last collective", "the middle of a backward pass"])
def test_a_fault_is_recovered_from(job: Job, at: str) -> None:
    import torch._dynamo  # DistributedDataParallel imports it, for seconds: here once for all ranks

    def work(me: Me) -> None:
        torch.set_num_threads(1)

        def fail(*_: object) -> None:
            raise ValueError(at)

        @Wrapper()
        def train(state: State) -> tuple[int, list[float]]:
            dist.init_process_group("gloo")
            faulty = state.iteration == 0 and state.rank == 1
            if faulty and at == "the first collective":
                fail()
            torch.manual_seed(0)
            model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)]))
            if faulty and at == "the middle of a backward pass":
                model.module[1].weight.register_hook(fail)
            model(torch.full((1, 4), float(state.rank))).sum().backward()
            if faulty and at == "the last collective":
                fail()
            total = torch.ones(1)
            dist.all_reduce(total)
            gradients = [float(weight.grad.sum()) for weight in model.parameters()]
            del model  # torch may hang where it is the last to hold its group
            dist.destroy_process_group()
            assert total == 2
            return state.iteration, gradients

        me.say(train())

    workers = job.begin(work, 2)
    assert f"ValueError: {at}" in job.restart().text
    results = [worker.says() for worker in workers]
    assert results[0] == results[1]
    assert results[0][0] == 1


def test_nothing_is_special_about_rank_0(job: Job) -> None:
    """Unlike in the guide: "node failure on rank 0 causes termination of the entire job"."""

    def work(me: Me) -> None:
        memory = []

        @Wrapper()
        def train(world: World) -> tuple[int, int]:
            dist.init_process_group("gloo")
            memory.append(world.round)
            total = torch.tensor([len(memory)])
            if world.rank == 0:
                me.say("training")
            while world.round == 1:
                dist.all_reduce(torch.ones(1))
            dist.all_reduce(total)
            dist.destroy_process_group()
            return world.rank, int(total)

        me.say(train())

    first, *others = job.begin(work, 3)
    (newcomer,) = job.start(work)
    assert first.says() == "training"
    job.lose(first, newcomer)
    assert others[0].says() == "training"
    assert [worker.says() for worker in (*others, newcomer)] == [(rank, 2 + 2 + 1) for rank in range(3)]


# What the function finds


def test_the_process_group_can_be_built_in_three_ways_and_the_environment_is_the_worlds(job: Job) -> None:
    """ "(RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and LOCAL_RANK) from the environment"."""

    def work(me: Me) -> None:
        torch.set_num_threads(1)

        @contextlib.contextmanager
        def by_the_environment(world: World) -> Iterator[None]:
            dist.init_process_group("gloo")
            yield
            dist.destroy_process_group()

        @contextlib.contextmanager
        def by_the_parameters(world: World) -> Iterator[None]:
            dist.init_process_group("gloo", **world.info.get_pg_parameters())
            yield
            dist.destroy_process_group()

        ways = [by_the_environment, by_the_parameters, World.process_group]

        @Wrapper()
        def train(world: World, state: State) -> bool:
            assert os.environ["RANK"] == str(world.rank) == str(state.rank) == str(state.active_rank)
            assert os.environ["WORLD_SIZE"] == str(world.world_size) == str(state.world_size) == "2"
            assert os.environ["MASTER_PORT"] == str(world.info.master_port)
            assert os.environ["MASTER_ADDR"] == world.info.master_addr
            assert world.round == state.round == state.iteration + 1
            with ways[state.iteration % 3](world):
                total = torch.ones(1)
                dist.all_reduce(total)
                assert total == 2
                if state.iteration < 3 and world.rank == 1:
                    raise ValueError("in a group")
                if state.iteration < 3:
                    dist.all_reduce(total)
            return dist.is_initialized()

        me.say(train())

    workers = job.begin(work, 2)
    for _ in range(3):
        assert "in a group" in job.restart().text
    assert [worker.says() for worker in workers] == [False] * 2


def test_memory_of_an_iteration_is_freed_before_the_next(job: Job) -> None:
    def work(me: Me) -> None:
        gc.disable()
        models: list[weakref.ref[Model]] = []
        groups: list[bool] = []

        class Model:
            def __del__(self) -> None:
                groups.append(dist.is_initialized())

        def load() -> None:
            model = Model()
            models.append(weakref.ref(model))
            raise KeyError("no such file")

        def free(state: State) -> None:
            me.say([model() is None for model in models])
            assert all(groups), "a model goes before its group"

        @Wrapper(finalize=free, initialize=free)
        def train(call: CallWrapper) -> None:
            if call.iteration:
                return
            dist.init_process_group("gloo")
            model = Model()
            models.append(weakref.ref(model))
            try:
                load()
            except KeyError as error:
                meet(me)
                if call.state.rank == 0:
                    raise ValueError("the model cannot be loaded") from error
                sit()

        train()

    workers = job.begin(work, 2)
    assert [worker.says() for worker in workers] == [[], []]
    job.meet()
    job.restart()
    assert [[worker.says() for _ in range(2)] for worker in workers] == [[[True, True]] * 2] * 2


@pytest.mark.parametrize("ends", ["by returning", "by an exception"])
def test_signal_handlers_of_the_user_are_left_in_place(job: Job, ends: str) -> None:
    def work(me: Me) -> None:
        signalled = Record()

        def own(*_: object) -> None:
            signalled.calls.append("own handler")

        signal.signal(signal.SIGURG, own)

        @Wrapper()
        def train(call: CallWrapper) -> None:
            signal.raise_signal(signal.SIGURG)
            if call.iteration == 0:
                raise ValueError("once more")
            if ends == "by an exception":
                raise Stop

        with contextlib.suppress(Stop):
            train()
        assert signal.getsignal(signal.SIGURG) is own
        me.say(signalled.calls)

    (worker,) = job.begin(work, 1)
    job.restart()
    assert worker.says() == ["own handler"] * 2


def test_it_injects_into_arguments_annotated_with_its_types(job: Job) -> None:
    """ "the Wrapper inspects the signature of the wrapped function"; what is given is left alone."""

    def work(me: Me) -> None:
        class Trainer:
            def __call__(self, call: CallWrapper, state: State | None = None) -> object:
                return call, state

            def method(self, call: Optional[CallWrapper] = None) -> object:  # noqa: UP045 - the older way
                return call

        def unknown(call: inprocess.CallWrapper, config: NotKnown, other: str = "") -> object:  # type: ignore[name-defined]  # noqa: F821
            return call, config, other

        def keyword_only(config: int, *, world: World, **others: object) -> object:
            return config, world, others

        call, state = Wrapper()(Trainer())()
        assert isinstance(call, CallWrapper)
        assert call.state == state
        assert Wrapper()(Trainer())("mine", None) == ("mine", None)
        assert isinstance(Wrapper()(Trainer().method)(), CallWrapper)
        assert isinstance(Wrapper()(functools.partial(unknown, config=1))()[0], CallWrapper)
        config, world, others = Wrapper()(keyword_only)(1, more=2)
        assert (config, others) == (1, {"more": 2})
        assert isinstance(world, World)
        me.say("done")

    (worker,) = job.begin(work, 1)
    assert worker.says() == "done"


def test_under_torchrun_it_is_called_once_and_its_exception_is_raised(job: Job) -> None:
    def work(me: Me) -> None:
        del os.environ[ENVIRONMENT_VARIABLE]
        os.environ.update(RANK="1", WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="1")
        did = Record()

        @Wrapper(rank_assignment=reverse)
        def inner(world: World) -> int:
            return world.rank

        @Wrapper(completion=did["completion"], terminate=did["terminate"])
        def train(world: World, error: Exception | None) -> tuple[int, int]:
            if error is not None:
                raise error
            return world.world_size, inner()

        assert train(error=None) == (2, 1)
        with pytest.raises(ConnectionError, match="a peer"):
            train(error=ConnectionError("a peer"))
        me.say(did.calls)

    (worker,) = job.start(work)
    assert worker.says() == ["completion", "terminate"]


# Nested wrappers


def test_a_fault_while_all_ranks_are_in_the_inner_restarts_that_alone(job: Job) -> None:
    """And what the outer goes on with is the world that the inner has come to."""

    def work(me: Me) -> None:
        did, order = Record(), Record()
        faults = {(0, "train"): 0, (0, "evaluate"): 1, (0, "report"): 0}

        def work_on(what: str, epoch: int, call: CallWrapper, world: World) -> None:
            did.calls.append(f"{what} {epoch}.{call.iteration} in world {world.round}")
            if call.iteration == 0 and (faulty := faults.get((epoch, what))) is not None:
                meet(me)
                if call.state.rank == faulty:
                    raise ValueError(f"a fault of {what}")
                sit()

        @Wrapper(abort=order["abort inner"], finalize=order["finalize inner"])
        def inner(what: str, epoch: int, call: CallWrapper, world: World) -> str:
            work_on(what, epoch, call, world)
            return what

        @Wrapper(abort=order["abort outer"], finalize=order["finalize outer"])
        def outer(call: CallWrapper, world: World) -> None:
            assert inner("train", call.iteration) == "train"
            assert inner("evaluate", call.iteration) == "evaluate"
            work_on("report", call.iteration, call, world)

        outer()
        me.say((did.calls, order.calls))

    workers = job.begin(work, 2)
    for depth in (2, 2, 1):
        job.meet()
        assert job.restart().depth == depth
    expected = (
        [
            *("train 0.0 in world 1", "train 0.1 in world 2"),
            *("evaluate 0.0 in world 2", "evaluate 0.1 in world 3"),
            "report 0.0 in world 1",
            *("train 1.0 in world 4", "evaluate 1.0 in world 4", "report 1.1 in world 4"),
        ],
        ["abort inner", "finalize inner"] * 2 + ["abort outer", "finalize outer"],
    )
    assert [worker.says() for worker in workers] == [expected] * 2


def test_a_change_of_the_members_restarts_the_outer(job: Job) -> None:
    """Newcomers begin there."""

    def work(me: Me) -> None:
        order, handled = Record(), Record()

        @Wrapper(abort=order["abort inner"], finalize=order["finalize inner"])
        def inner(world: World) -> None:
            me.say("inner")
            if world.round == 1:
                sit()

        @Wrapper(abort=order["abort outer"], finalize=order["finalize outer"])
        def outer(call: CallWrapper) -> int:
            try:
                inner()
            except BaseException:
                time.sleep(SHORT_S)  # nothing is raised again meanwhile
                handled.calls.append("to its end")
                raise
            return call.iteration

        me.say((outer(), order.calls, handled.calls))

    first, second = job.begin(work, 2)
    assert [first.says(), second.says()] == ["inner"] * 2
    (newcomer,) = job.start(work)
    job.lose(first, newcomer)
    assert [second.says(), newcomer.says()] == ["inner"] * 2
    assert second.says() == (1, ["abort inner", "finalize inner", "abort outer", "finalize outer"], ["to its end"])
    assert newcomer.says() == (0, [], [])


def test_an_inner_wrapper_is_for_the_active_ranks_of_the_outer_and_has_their_numbers(job: Job) -> None:
    def work(me: Me) -> None:
        def seen(state: State, world: World) -> tuple[object, ...]:
            environment = (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
            return environment, (state.rank, state.active_world_size), (world.rank, world.world_size)

        @Wrapper()
        def inner(state: State, world: World) -> tuple[object, ...]:
            if world.round == 1 and state.rank == 1:
                raise ValueError("the loss is not a number")
            if world.round == 1:
                sit()
            return seen(state, world)

        @Wrapper(rank_assignment=MaxActiveWorldSize(1))
        def smaller(state: State, world: World) -> tuple[object, ...]:
            return seen(state, world)

        @Wrapper(rank_assignment=Compose(MaxActiveWorldSize(2), reverse))
        def outer(call: CallWrapper, state: State, world: World) -> tuple[object, ...]:
            return call.iteration, inner(), smaller(), seen(state, world)

        me.say(outer())

    workers = job.begin(work, 3)
    assert job.restart().depth == 1, "the reserve is in no inner one"

    def of_two(rank: int) -> tuple[object, ...]:
        return ((rank, 2),) * 3

    assert workers[0].says() is None
    assert workers[1].says() == (1, of_two(1), None, of_two(1))
    assert workers[2].says() == (1, of_two(0), ((0, 1),) * 3, of_two(0))


# Reserves


def test_reserve_ranks_would_be_activated_if_previously_active_ranks_were_terminated(job: Job) -> None:
    """ "inactive ranks, which are waiting idle", and return None in the end."""

    def work(me: Me) -> None:
        @Wrapper(
            initialize=lambda state: me.say((state.is_active, state.active_rank, state.active_world_size)),
            rank_assignment=Compose(ActiveWorldSizeDivisibleBy(2), MaxActiveWorldSize(3), ShiftRanks()),
        )
        def train(world: World) -> int:
            assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(world.rank), str(world.world_size))
            dist.init_process_group("gloo")
            if world.round == 1:
                sit()
            total = torch.ones(1)
            dist.all_reduce(total)
            dist.destroy_process_group()
            return int(total)

        me.say(train())

    workers = job.begin(work, 4)
    active, reserve = [(True, 0, 2), (True, 1, 2)], (False, None, 2)
    assert [worker.says() for worker in workers] == [*active, reserve, reserve]
    lost = workers.pop(0)
    job.lose(lost)
    assert [worker.says() for worker in workers] == [*active, reserve]
    assert [worker.says() for worker in workers] == [2, 2, None]


def test_a_discarded_rank_ends_and_the_others_go_on(job: Job) -> None:
    def work(me: Me) -> None:
        def without_the_last(seats: tuple[Seat, ...]) -> tuple[Seat, ...]:
            return tuple(replace(seat, discarded=seat.rank == 2) for seat in seats)

        @Wrapper(rank_assignment=without_the_last)
        def train(world: World) -> int:
            return world.world_size

        try:
            me.say(train())
        except BaseException as error:
            me.say(repr(error))

    *kept, discarded = job.begin(work, 3)
    assert discarded.says().startswith("RankDiscarded('Wrapper: rank_assignment has discarded rank 2 of world 1")
    assert [worker.says() for worker in kept] == [2, 2]


def test_an_assignment_that_cannot_be_used_is_a_fault_of_all(job: Job) -> None:
    def work(me: Me) -> None:
        @Wrapper(rank_assignment=lambda seats: 7 if len(seats) == 2 else None)  # type: ignore[arg-type,return-value]
        def train(call: CallWrapper) -> int:
            return call.iteration

        me.say(train())

    first, second = job.begin(work, 2)
    assert all("it returned a int" in fault.text for fault in job.told_faults(2))
    job.lose(first)
    assert second.says() == 1


# Bad input


async def coroutine() -> None: ...


def generator() -> Iterator[int]:
    yield 1


def train_plainly(config: int) -> int:
    return config


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Wrapper(train_plainly), "Wrapper: train_plainly was given in place of the options; write @Wrapper()"),  # type: ignore[arg-type]
        (lambda: Wrapper(60), "Wrapper: 60 (int) was given without a name; name the option, like soft_timeout="),  # type: ignore[arg-type]
        (
            lambda: Wrapper(timedelta(seconds=60), timedelta(seconds=90)),  # type: ignore[arg-type]
            "Wrapper: datetime.timedelta(seconds=60) (timedelta) was given without a name; name the option",
        ),
        (
            lambda: Wrapper(soft_timeout=60),  # type: ignore[arg-type]
            "Wrapper: soft_timeout is 60 (int); pass a datetime.timedelta, like timedelta(seconds=60)",
        ),
        (lambda: Wrapper(last_call_wait=1.5), "Wrapper: last_call_wait is 1.5 (float); pass a datetime.timedelta"),  # type: ignore[arg-type]
        (lambda: Wrapper(completion_timeout=None), "Wrapper: completion_timeout is None (NoneType); pass a datetime"),  # type: ignore[arg-type]
        (
            lambda: Wrapper(termination_grace_time=timedelta(-1)),
            "Wrapper: termination_grace_time is -86400 s; pass a timedelta above 0",
        ),
        (
            lambda: Wrapper(hard_timeout=timedelta(seconds=5)),
            "Wrapper: hard_timeout=5 s would end a rank before soft_timeout=60 s restarts it; make it longer",
        ),
        (lambda: Wrapper(initialize=5), "Wrapper: initialize is 5 (int), which cannot be called; pass a callback, or"),  # type: ignore[arg-type]
        (
            lambda: Wrapper(health_check=inprocess.CudaHealthCheck),  # type: ignore[arg-type]
            "Wrapper: health_check is the class CudaHealthCheck; pass an instance of it",
        ),
        (
            lambda: Wrapper()(None),  # type: ignore[arg-type]
            "Wrapper: the wrapped object is None (NoneType), which cannot be called; pass a function",
        ),
        (lambda: Wrapper()(coroutine), "Wrapper: coroutine is a coroutine function, which trains nothing when"),
        (lambda: Wrapper()(generator), "Wrapper: generator is a generator function, which trains nothing when"),
        (lambda: Wrapper()(Record), "Wrapper: Record is a class, which trains nothing when it is called; wrap"),
        (lambda: Wrapper()(functools.partial(coroutine)), "Wrapper: functools.partial(<function coroutine"),
        (lambda: Wrapper()(train_plainly)(), "Wrapper: train_plainly cannot be called so: missing a required argument"),
        (lambda: Wrapper()(train_plainly)(1, 2), "Wrapper: train_plainly cannot be called so: too many positional"),
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_given(make: Callable[[], object], line: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        make()
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_not_enabled_it_leaves_the_function_as_it_is() -> None:
    def train(config: int, call: CallWrapper | None = None) -> tuple[object, ...]:
        return config, call, threading.current_thread().name

    wrapped = Wrapper(enabled=False)(train)
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(wrapped(1)), name="a thread of the user's")
    thread.start()
    thread.join()
    assert results == [(1, None, "a thread of the user's")]
    assert wrapped.__name__ == "train"


def test_it_says_where_it_can_be_called(job: Job) -> None:
    def work(me: Me) -> None:
        wrapped = Wrapper()(lambda: me.say("called"))
        raised: list[str] = []

        def call() -> None:
            try:
                wrapped()
            except RuntimeError as error:
                raised.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        call()
        dist.destroy_process_group()
        me.say(raised)
        call()

    (worker,) = job.begin(work, 1)
    assert worker.says() == [
        "Wrapper: called in a thread; call the wrapped function in the main thread",
        "Wrapper: there is a process group already, which no restart could leave; build it in the wrapped function",
    ]
    assert worker.says() == "called"
