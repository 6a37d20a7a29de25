"""What an exception leads to, of a wrapped function or of a callback, on its own rank and on others.

Quotes are of NVIDIA's usage guide.
"""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import Me
from torch.nn.parallel import DistributedDataParallel
from wrapped_ranks import SHORT_S, Job, Record, Stop, meet, sit

from fake_agent import wait_until
from softrun.runtime import World
from softrun.runtime.events import WorldChangeEvent
from softrun.runtime.inprocess import (
    AbortProcessGroups,
    CallWrapper,
    FaultCounter,
    RankShouldRestart,
    State,
    Wrapper,
    format_interruption_records,
)

# Faults


@pytest.mark.parametrize("fault", [ValueError, ConnectionError])
def test_a_fault_is_told_with_its_traceback_in_the_log_of_every_rank(job: Job, fault: type[Exception]) -> None:
    def work(me: Me) -> None:
        @Wrapper()
        def train(state: State) -> int:
            if state.iteration == 0 and state.rank == 1:
                raise fault("the loss is not a number")
            if state.iteration == 0:
                sit()
            return state.iteration

        me.say(train())

    workers = job.begin(work, 2)
    job.restart()
    for rank, worker in enumerate(workers):
        assert worker.says() == 1
        restarts = worker.log.partition(f"worker {rank} restarts after a fault of rank 1 of world 1: ")[2]
        assert re.match(rf"Traceback .* in train\n.*{fault.__name__}: the loss is not a number\n", restarts, re.DOTALL)


def test_what_an_abort_makes_the_function_raise_is_no_fault_of_its_rank(job: Job) -> None:
    """Mostly the function is interrupted first."""

    def work(me: Me) -> None:
        seen: list[str] = []
        counter = FaultCounter(1)

        def note(state: State) -> None:
            seen.append(type(state.fn_exception).__name__)

        def abort(state: State) -> None:
            AbortProcessGroups()(state)
            time.sleep(SHORT_S)

        @Wrapper(initialize=note, abort=abort, health_check=counter)
        def train(state: State) -> int:
            dist.init_process_group("gloo")
            dist.barrier()
            if state.iteration == 0:
                if state.rank == 1:
                    raise ValueError("the loss is not a number")
                dist.recv(torch.empty(1))
            return state.iteration

        train()
        me.say((seen, counter.faults))

    workers = job.begin(work, 2)
    job.restart()
    assert [worker.says() for worker in workers] == [
        (["NoneType", "NoneType"], 0),
        (["NoneType", "ValueError"], 1),
    ]


def test_an_exception_that_looks_like_a_lost_peers_is_told_in_the_log(job: Job) -> None:
    """Nobody else tells what happened where no peer was lost."""

    def work(me: Me) -> None:
        @Wrapper()
        def train(call: CallWrapper) -> int:
            if call.iteration == 0:
                raise RuntimeError("Connection closed by peer, says the server of the data")
            return call.iteration

        me.say(train())

    (worker,) = job.begin(work, 1)
    wait_until(lambda: worker.status.broken_round == 1, "a broken world")
    assert worker.status.fault is None
    job.form([worker])
    assert worker.says() == 1
    told = worker.log.partition("worker 0 restarts after an exception of its own\n")[2]
    assert re.match(r"Traceback .* in train\n.*RuntimeError: Connection closed by peer, says.*\n", told, re.DOTALL)


def test_a_group_that_was_kept_from_the_last_iteration_is_a_fault_that_names_it(job: Job) -> None:
    def work(me: Me) -> None:
        kept: list[Any] = []

        @Wrapper()
        def train(call: CallWrapper) -> int:
            dist.init_process_group("gloo")
            if call.iteration < 2:
                kept.append(dist.new_group())
                dist.all_reduce(torch.ones(1), group=kept[0])
                dist.barrier()
                raise ValueError("again")
            return call.iteration

        me.say(train())

    workers = job.begin(work, 2)
    assert job.restart(2).text.endswith("ValueError: again\n")
    named = "RuntimeError: the process group '1' of 2 ranks, which was built in an earlier world, was used again: "
    assert named in job.restart(2).text
    assert [worker.says() for worker in workers] == [2, 2]


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
    assert f"not all ranks arrived within {SHORT_S:g} s" in fault.text
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
            dist.barrier()  # every rank has begun before the test goes on
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


# Failures of callbacks


@pytest.mark.parametrize("error", [ValueError, Stop])
def test_a_standard_exception_triggers_another_restart_while_a_base_exception_terminates_the_wrapper(
    job: Job, error: type[BaseException]
) -> None:
    def work(me: Me) -> None:
        did = Record()

        def fail(state: State) -> None:
            if state.iteration == 0:
                raise error("preconditions are not met")

        @Wrapper(initialize=fail, terminate=did["terminate"])
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


@pytest.mark.parametrize("error", [ValueError, Stop])
def test_a_failure_of_completion_undoes_nothing(job: Job, error: type[BaseException]) -> None:
    """All ranks are through by then: an Exception is logged, and whatever else it raises ends the call."""

    def work(me: Me) -> None:
        did = Record()

        def fail(state: State) -> None:
            did.calls.append("completion")
            raise error("no report today")

        @Wrapper(completion=fail, terminate=did["terminate"])
        def train() -> str:
            return "through"

        try:
            me.say((train(), did.calls))
        except BaseException as raised:
            me.say((repr(raised), did.calls))

    workers = job.begin(work, 2)
    said = "through" if error is ValueError else "Stop('no report today')"
    assert [worker.says() for worker in workers] == [(said, ["completion"])] * 2
    assert all(worker.status.fault is None for worker in workers)
    assert all(("no report today" in worker.log) is (error is ValueError) for worker in workers)


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


def test_the_interruption_names_cause_and_ranks(job: Job) -> None:
    def work(me: Me) -> None:
        texts: list[str] = []

        @Wrapper()
        def train(call: CallWrapper, state: State) -> list[str]:
            texts.append(format_interruption_records(call.interruptions))
            if state.iteration < 2:
                try:
                    meet(me)
                    if state.iteration == 0 and state.rank == 1:
                        raise ValueError("the loss is not a number")
                    sit()
                except RankShouldRestart as interruption:
                    texts.append(str(interruption))
                    raise
            return texts

        me.say(train())

    workers = job.begin(work, 3)
    job.meet()
    job.restart()
    job.meet()
    job.form(workers[:2], WorldChangeEvent.SCALE_DOWN, lost=(2,))
    ended = "world 1 has ended: EXCEPTION on rank 1: fault of rank 1 of world 1: ValueError: the loss is not a number"
    lost = ["EXCEPTION on rank 1", "world 2 has ended: TERMINATED on rank 2", "TERMINATED on rank 2"]
    assert workers[0].says() == ["", ended, *lost]
    assert workers[1].says() == ["", *lost]
