from __future__ import annotations

import pytest
from values import member, sealed

from softrun.agent import effects as do
from softrun.agent.crew import ABANDON_S, SIGKILL, Crew, State
from softrun.agent.model import Worker
from softrun.runtime.events import WorkerState, WorkerStatus, WorldChangeEvent

LIFE = ("a", 1)
SIGTERM = 15


def entered(size: int = 2) -> Crew:
    crew = Crew(size, grace_s=2.0)
    crew.enter(sealed(member("a", workers=size)), LIFE, 0, 0.0)
    return crew


def tells(effects: list[do.Effect]) -> list[tuple[int, WorkerState, WorldChangeEvent | None, int]]:
    return [(e.local_rank, e.state, e.change, e.round) for e in effects if isinstance(e, do.Tell)]


def signals(effects: list[do.Effect]) -> list[tuple[int, int]]:
    return [(e.local_rank, e.signum) for e in effects if isinstance(e, do.SignalWorker)]


def test_the_absent_are_started_with_their_first_event() -> None:
    crew = Crew(2, grace_s=2.0)
    (spawn,) = crew.enter(sealed(member("a", workers=2)), LIFE, 3, 0.0)
    assert isinstance(spawn, do.Spawn)
    assert [(t.local_rank, t.launch, t.state, t.change) for t in spawn.tell] == [
        (0, 1, WorkerState.HEALTHY, None),
        (1, 1, WorkerState.HEALTHY, None),
    ]
    assert spawn.restarts_left == 3


def test_the_running_are_paused_before_they_are_told_of_a_world() -> None:
    crew = entered()
    effects = crew.enter(sealed(member("a", workers=2), member("b"), number=2), LIFE, 0, 0.0)
    up = WorldChangeEvent.SCALE_UP
    assert tells(effects) == [
        (0, WorkerState.PAUSED, up, 1),
        (1, WorkerState.PAUSED, up, 1),
        (0, WorkerState.HEALTHY, up, 2),
        (1, WorkerState.HEALTHY, up, 2),
    ]


def test_those_who_have_not_asked_for_their_world_are_known() -> None:
    crew = entered()
    crew.said(1, 1, WorkerStatus(ready=True, applied=1), 1.0)
    assert crew.silent() == (0,)
    crew.said(0, 2, WorkerStatus(ready=True, applied=1), 1.0)  # of another process
    assert crew.silent() == (0,)
    crew.exited(0, 1, 1)
    assert crew.silent() == ()


def test_nobody_is_paused_twice() -> None:
    crew = entered()
    assert len(crew.pause(WorldChangeEvent.SCALE_DOWN, 0.0)) == 2
    assert crew.pause(WorldChangeEvent.SCALE_DOWN, 0.0) == []


def test_stopping_escalates_and_then_gives_up() -> None:
    crew = entered(1)
    assert signals(crew.stop(SIGTERM, now=10.0)) == [(0, SIGTERM)]
    assert crew.deadline() == 12.0
    assert crew.tick(11.9) == []
    assert signals(crew.tick(12.0)) == [(0, SIGKILL)]
    assert crew.deadline() == 12.0 + ABANDON_S
    (note,) = crew.tick(12.0 + ABANDON_S)
    assert isinstance(note, do.Note)
    assert note.warning
    assert not crew.living()
    assert crew.deadline() is None


def test_a_second_signal_kills_at_once() -> None:
    crew = entered(1)
    crew.stop(SIGTERM, now=0.0)
    assert signals(crew.stop(SIGTERM, now=1.0)) == []
    assert signals(crew.stop(SIGKILL, now=1.0)) == [(0, SIGKILL)]


@pytest.mark.parametrize(("code", "state"), [(0, State.DONE), (1, State.FAILED), (-9, State.FAILED)])
def test_an_exit_that_nobody_asked_for(code: int, state: State) -> None:
    crew = entered(1)
    failure = crew.exited(0, launch=1, exitcode=code)
    assert crew._slots[0].state is state
    assert (failure is not None) == (state is State.FAILED)


@pytest.mark.parametrize("code", [0, 1, -15])
def test_an_exit_that_was_asked_for_is_neither_success_nor_failure(code: int) -> None:
    crew = entered(1)
    crew.stop(SIGTERM, now=0.0)
    assert crew.exited(0, launch=1, exitcode=code) is None
    assert crew.done() == ()
    assert crew.workers() == ()


def test_an_exit_of_an_earlier_launch_changes_nothing() -> None:
    crew = entered(1)
    crew.stop(SIGTERM, now=0.0)
    crew.exited(0, launch=1, exitcode=-15)
    crew.renew()
    crew.enter(sealed(member("a", lives=2), number=2), LIFE, 1, 0.0)
    assert crew.exited(0, launch=1, exitcode=1) is None
    assert crew.living()


def test_renewed_workers_are_newcomers_and_rewound_ones_are_not() -> None:
    for begin_anew, incarnation in ((Crew.renew, 2), (Crew.rewind, 1)):
        crew = entered(1)
        crew.stop(SIGTERM, now=0.0)
        crew.exited(0, launch=1, exitcode=-15)
        begin_anew(crew)
        assert crew.workers() == (Worker(0, incarnation),)
        effects = crew.enter(sealed(member("a", lives=incarnation), number=2), LIFE, 1, 0.0)
        (spawn,) = effects
        assert isinstance(spawn, do.Spawn)
        assert spawn.tell[0].launch == 2


def test_who_is_stopped_to_be_started_again_keeps_the_place() -> None:
    crew = entered(2)
    crew.stop(SIGTERM, now=0.0, rewinding=True)
    assert len(crew.workers()) == 2
    crew.exited(0, launch=1, exitcode=-15)
    assert len(crew.workers()) == 2


def test_what_is_done_is_not_done_again() -> None:
    crew = entered(2)
    crew.exited(0, launch=1, exitcode=0)
    crew.stop(SIGTERM, now=0.0, rewinding=True)
    crew.exited(1, launch=1, exitcode=-15)
    crew.rewind()
    assert crew.done() == (0,)


def test_one_worker_is_replaced_alone() -> None:
    crew = entered(2)
    crew.exited(0, launch=1, exitcode=1)
    crew.replace(0)
    assert crew.workers() == (Worker(0, 2), Worker(1, 1))
    assert crew.restarts_of(0) == 1
    assert crew.restarts_of(1) == 0


def test_finished_means_that_somebody_is_done_and_nobody_works() -> None:
    crew = entered(3)
    crew.exited(0, launch=1, exitcode=1)
    assert not crew.finished()
    crew.exited(1, launch=1, exitcode=0)
    assert not crew.finished()
    crew.exited(2, launch=1, exitcode=0)
    assert crew.finished()


def test_the_living_are_never_begun_anew() -> None:
    for begin_anew in (Crew.renew, Crew.rewind):
        with pytest.raises(AssertionError, match="that lives"):
            begin_anew(entered(1))
