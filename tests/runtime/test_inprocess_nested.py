"""A wrapped function that calls another: which of the two a fault restarts, and on which ranks."""

from __future__ import annotations

import os
import time

from gloo_ranks import Me
from wrapped_ranks import SHORT_S, Job, Record, Reverse, meet, sit

from softrun.runtime import World
from softrun.runtime.inprocess import CallWrapper, Compose, MaxActiveWorldSize, State, Wrapper


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
    assert newcomer.says() == (1, [], []), "the job's iteration, not its own"


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

        @Wrapper(rank_assignment=Compose(MaxActiveWorldSize(2), Reverse()))
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
