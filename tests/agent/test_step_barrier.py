from __future__ import annotations

from dataclasses import replace

from values import member, sealed

from softrun.agent.core.local_workers import JOIN_S, LEAVE_S, LocalWorkers
from softrun.agent.core.step_barrier import StepBarrier
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.model import NO_REQUEST, BarrierAnswer
from softrun.agent.protocol.observations import StepSeen
from softrun.runtime.events import WorkerState, WorkerStatus

LIFE = ("a", 1)
ASKED = (2, 0)
WORLD = sealed(member("a", workers=2), member("b"))


def at_work(applied: int = 1) -> LocalWorkers:
    workers = LocalWorkers(2, grace_s=60.0)
    workers.enter(WORLD, LIFE, 0, 0.0)
    for local_rank in (0, 1):
        workers.said(local_rank, 1, WorkerStatus(ready=True, applied=applied), 0.0)
    return workers


def told(effects: list[do.Effect]) -> list[tuple[int, int | None]]:
    return [(tell.local_rank, tell.stop_after) for tell in effects if isinstance(tell, do.Tell)]


def test_each_waits_after_the_step_that_it_is_in() -> None:
    barrier = StepBarrier(at_work())
    assert barrier.follow(ASKED) == [do.LookAtStep(0, 1), do.LookAtStep(1, 1)]
    assert barrier.follow(ASKED) == []
    assert told(barrier.seen(StepSeen(0, 1, 7))) == [(0, 8)]
    assert told(barrier.seen(StepSeen(1, 1, 6))) == [(1, 7)]
    assert barrier.answer() is None, "it may have come further before it was told"
    assert barrier.seen(StepSeen(0, 1, 7)) == []
    assert barrier.answer() is None
    barrier.seen(StepSeen(1, 1, 6, step_s=0.5))
    assert barrier.answer() == BarrierAnswer(ASKED, 7, 8, all=True, step_s=0.5)


def test_one_that_was_told_too_late_is_told_again() -> None:
    barrier = StepBarrier(at_work())
    barrier.follow(ASKED)
    barrier.seen(StepSeen(1, 1, None))
    assert told(barrier.seen(StepSeen(0, 1, 7))) == [(0, 8)]
    assert told(barrier.seen(StepSeen(0, 1, 8))) == [(0, 10)]
    assert told(barrier.seen(StepSeen(0, 1, 11))) == [(0, 15)]
    barrier.seen(StepSeen(0, 1, 14))
    assert barrier.answer() == BarrierAnswer(ASKED, 15, 15, all=False)


def test_a_first_step_that_comes_soon_is_waited_for() -> None:
    barrier = StepBarrier(at_work())
    barrier.follow(ASKED)
    for local_rank in (0, 1):
        assert barrier.seen(StepSeen(local_rank, 1, None, step_s=0.05)) == []
    assert barrier.answer() is None
    for local_rank in (0, 1):
        assert barrier.look_again(local_rank, 1) == [do.LookAtStep(local_rank, 1)]
        assert told(barrier.seen(StepSeen(local_rank, 1, 7, step_s=0.04))) == [(local_rank, 8)]
        barrier.seen(StepSeen(local_rank, 1, 7, step_s=0.04))
    assert barrier.answer() == BarrierAnswer(ASKED, 8, 8, all=True, step_s=0.04)


def test_a_step_is_not_waited_for_that_a_worker_says_it_will_not_take() -> None:
    barrier = StepBarrier(at_work())
    barrier.follow(ASKED)
    for local_rank in (0, 1):
        barrier.seen(StepSeen(local_rank, 1, None, step_s=0.05))
        assert barrier.look_again(local_rank, 1) == [do.LookAtStep(local_rank, 1)]
        assert barrier.seen(StepSeen(local_rank, 1, None, step_s=0.0)) == []
    assert barrier.answer() == BarrierAnswer(ASKED, 0, 0, all=False)


def test_a_first_step_that_takes_long_is_not_waited_for() -> None:
    barrier = StepBarrier(at_work())
    barrier.follow(ASKED)
    for local_rank in (0, 1):
        barrier.seen(StepSeen(local_rank, 1, None, step_s=0.06))
    assert barrier.answer() == BarrierAnswer(ASKED, 0, 0, all=False, step_s=0.06)


def test_those_that_count_no_steps_are_told_nothing() -> None:
    barrier = StepBarrier(at_work())
    barrier.follow(ASKED)
    assert [barrier.seen(StepSeen(local_rank, 1, None)) for local_rank in (0, 1)] == [[], []]
    assert barrier.answer() == BarrierAnswer(ASKED, 0, 0, all=False)
    assert barrier.follow(NO_REQUEST) == []
    assert barrier.answer() is None


def test_one_that_begins_to_count_is_held_then() -> None:
    barrier = StepBarrier(at_work())
    barrier.follow(ASKED)
    for local_rank in (0, 1):
        barrier.seen(StepSeen(local_rank, 1, None))
    assert barrier.look_again(0, 1) == [do.LookAtStep(0, 1)]
    assert barrier.answer() is None
    assert told(barrier.seen(StepSeen(0, 1, 7))) == [(0, 8)]
    barrier.seen(StepSeen(0, 1, 7))
    assert barrier.answer() == BarrierAnswer(ASKED, 8, 8, all=False)
    assert barrier.look_again(0, 1) == [], "it was told"


def test_a_step_of_the_last_world_does_not_stand_for_the_first_of_this_one() -> None:
    barrier = StepBarrier(at_work())
    barrier.follow(ASKED)
    assert told(barrier.seen(StepSeen(0, 1, 7, 0.01))) == [(0, 8)]
    assert barrier.seen(StepSeen(0, 1, None, 0.01)) == [], "it has begun meanwhile"
    assert barrier.look_again(0, 1) == [do.LookAtStep(0, 1)]


def test_they_go_on_when_it_comes_to_nothing() -> None:
    barrier = StepBarrier(at_work())
    barrier.follow(ASKED)
    barrier.seen(StepSeen(0, 1, 7))
    assert told(barrier.follow(NO_REQUEST)) == [(0, None)]
    assert barrier.seen(StepSeen(0, 1, 7)) == []


def test_they_are_asked_when_they_are_in_the_world() -> None:
    workers = at_work(applied=0)
    barrier = StepBarrier(workers)
    assert barrier.follow(ASKED) == []
    for local_rank in (0, 1):
        workers.said(local_rank, 1, WorkerStatus(ready=True, applied=1), 0.0)
    assert len(barrier.follow(ASKED)) == 2


def test_who_has_left_a_world_is_not_told_of_its_steps() -> None:
    workers = at_work()
    paused = workers.pause(None, 0.0)
    assert [tell.leave_after for tell in paused if isinstance(tell, do.Tell)] == [None, None]
    world = sealed(member("a", workers=2), member("b"), member("c"), number=2)
    (first, second) = workers.enter(replace(world, leave_after=9), LIFE, 0, 0.0)
    assert isinstance(first, do.Tell)
    assert isinstance(second, do.Tell)
    assert (first.leave_after, second.leave_after) == (None, None)


def test_nobody_waits_for_a_step_for_ever() -> None:
    for nodes, bound_s in (("abc", JOIN_S), ("a", LEAVE_S)):
        workers = at_work()
        world = sealed(*(member(node, workers=2 if node == "a" else 1) for node in nodes), number=2)
        effects = workers.enter(replace(world, leave_after=9), LIFE, 0, 100.0)
        assert [tell.leave_after for tell in effects if isinstance(tell, do.Tell)] == [9] * 4
        workers.said(0, 1, WorkerStatus(ready=True, applied=3), 101.0)
        assert workers.deadline() == 100.0 + bound_s
        assert not workers.leaving(1)
        (late,) = workers.tick(100.0 + bound_s)
        assert isinstance(late, do.Tell)
        assert (late.local_rank, late.state, late.round, late.leave_after) == (1, WorkerState.HEALTHY, 2, None)
        assert workers.leaving(1)
        assert workers.deadline() is None
