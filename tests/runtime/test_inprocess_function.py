"""What a wrapped function is given and finds, and what cannot be wrapped. Quotes are of NVIDIA's usage guide."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Optional

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import Me
from wrapped_ranks import Job, Record, Stop, meet, sit

from softrun.runtime import World, inprocess
from softrun.runtime.inprocess import CallWrapper, State, Wrapper

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
        assert call.frozen_state == state
        assert Wrapper()(Trainer())("mine", None) == ("mine", None)
        assert isinstance(Wrapper()(Trainer().method)(), CallWrapper)
        assert isinstance(Wrapper()(functools.partial(unknown, config=1))()[0], CallWrapper)
        config, world, others = Wrapper()(keyword_only)(1, more=2)
        assert (config, others) == (1, {"more": 2})
        assert isinstance(world, World)
        me.say("done")

    (worker,) = job.begin(work, 1)
    assert worker.says() == "done"


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
            "Wrapper: soft_timeout=60 s must be below hard_timeout=5 s; make hard_timeout longer",
        ),
        (
            lambda: Wrapper(heartbeat_interval=timedelta(seconds=3), heartbeat_timeout=timedelta(seconds=2)),
            "Wrapper: heartbeat_interval=3 s must be below heartbeat_timeout=2 s; make heartbeat_timeout longer",
        ),
        (
            lambda: Wrapper(barrier_timeout=timedelta(seconds=80)),
            "Wrapper: hard_timeout=90 s must be below barrier_timeout=80 s; make barrier_timeout longer",
        ),
        (lambda: Wrapper(monitor_process_logfile="log"), "Wrapper: monitor_process_logfile is 'log'; pass an absolute"),
        (lambda: Wrapper(store_factory=dict), "Wrapper: store_factory must be a subclass of StoreMixin, or None"),  # type: ignore[arg-type]
        (lambda: Wrapper(store_kwargs=[]), "Wrapper: store_kwargs is [] (list); pass a dict, or None"),  # type: ignore[arg-type]
        (
            lambda: Wrapper(finalize=inprocess.FaultCounter(1)),
            "Wrapper: finalize is FaultCounter(max_rank_faults=1, faults=0), which is a callback of another kind, Heal",
        ),
        (lambda: Wrapper(rank_assignment=inprocess.RetryController(1)), "Wrapper: rank_assignment is RetryController("),
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
        (
            lambda: Wrapper()(train_plainly)(),
            "Wrapper: train_plainly cannot be called like this: missing a required argument",
        ),
        (
            lambda: Wrapper()(train_plainly)(1, 2),
            "Wrapper: train_plainly cannot be called like this: too many positional",
        ),
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
