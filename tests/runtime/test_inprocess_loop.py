"""A wrapped function is called again and again: in what order, where ranks wait for each other, who takes part.

Quotes are of NVIDIA's usage guide.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import Me
from wrapped_ranks import SHORT_S, Job, Record, meet, sit

from softrun.runtime import World
from softrun.runtime.inprocess import (
    ActiveWorldSizeDivisibleBy,
    CallWrapper,
    Compose,
    MaxActiveWorldSize,
    RankAssignment,
    RankAssignmentCtx,
    Seat,
    ShiftRanks,
    State,
    Wrapper,
)

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


def test_an_assignment_that_cannot_be_used_ends_all(job: Job) -> None:
    def work(me: Me) -> None:
        try:
            Wrapper(rank_assignment=lambda seats: 7)(sit)()  # type: ignore[arg-type,return-value]
        except ValueError as error:
            me.say(str(error))

    for worker in job.begin(work, 2):
        assert "it returned a int" in worker.says()


class PerProcess(RankAssignment):
    """Its ranks do not agree: each calculates something else."""

    def __init__(self, wrong: Callable[[State], None]) -> None:
        self.wrong = wrong

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        if ctx.state.rank == 2:
            self.wrong(ctx.state)
        return ctx


def larger(state: State) -> None:
    state.world_size += 1


def taken(state: State) -> None:
    state.rank = 1


def unknown(state: State) -> None:
    raise KeyError("no such host")


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (larger, "world_size is 3 on the rank with initial rank 0 and 4 on that with 2; it must be the same on all"),
        (taken, "2 ranks have rank 1, among 3; number them from 0"),
        (unknown, "on rank 2: KeyError: 'no such host'"),
    ],
)
def test_an_assignment_whose_ranks_differ_ends_all_with_the_same_line(
    job: Job, wrong: Callable[[State], None], line: str
) -> None:
    def work(me: Me) -> None:
        try:
            Wrapper(rank_assignment=PerProcess(wrong))(sit)()
        except ValueError as error:
            me.say(str(error))

    said = [worker.says() for worker in job.begin(work, 3)]
    assert said[0] == said[1] == said[2]
    assert said[0] == f"rank assignment PerProcess: {line}"
