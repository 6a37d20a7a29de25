from __future__ import annotations

from dataclasses import replace

import pytest
from values import member, sealed

from softrun.agent.core.local_workers import LocalWorkers
from softrun.agent.core.worker_slot import ABANDON_S, SHOW_S, SIGKILL, State
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.model import Member, Worker
from softrun.runtime.events import RESUME, ProgressLimits, WorkerFault, WorkerState, WorkerStatus, WorldChangeEvent

LIFE = ("a", 1)
SIGTERM = 15


def entered(size: int = 2) -> LocalWorkers:
    workers = LocalWorkers(size, grace_s=2.0)
    workers.enter(sealed(member("a", workers=size)), LIFE, 0, 0.0)
    return workers


def tells(effects: list[do.Effect]) -> list[tuple[int, WorkerState, WorldChangeEvent | None, int]]:
    return [(e.local_rank, e.state, e.change, e.round) for e in effects if isinstance(e, do.Tell)]


def signals(effects: list[do.Effect]) -> list[tuple[int, int]]:
    return [(e.local_rank, e.signum) for e in effects if isinstance(e, do.SignalWorker)]


def test_the_absent_are_started_with_their_first_event() -> None:
    workers = LocalWorkers(2, grace_s=2.0)
    (spawn,) = workers.enter(sealed(member("a", workers=2)), LIFE, 3, 0.0)
    assert isinstance(spawn, do.Spawn)
    assert [(t.local_rank, t.launch, t.state, t.change) for t in spawn.tell] == [
        (0, 1, WorkerState.HEALTHY, None),
        (1, 1, WorkerState.HEALTHY, None),
    ]
    assert spawn.restarts_left == 3


def test_the_running_are_paused_before_they_are_told_of_a_world() -> None:
    workers = entered()
    effects = workers.enter(sealed(member("a", workers=2), member("b"), number=2), LIFE, 0, 0.0)
    up = WorldChangeEvent.SCALE_UP
    assert tells(effects) == [
        (0, WorkerState.PAUSED, up, 1),
        (1, WorkerState.PAUSED, up, 1),
        (0, WorkerState.HEALTHY, up, 2),
        (1, WorkerState.HEALTHY, up, 2),
    ]


def test_those_who_have_not_asked_for_their_world_are_known() -> None:
    workers = entered()
    workers.said(1, 1, WorkerStatus(ready=True, applied=1), 1.0)
    assert workers.silent() == (0,)
    workers.said(0, 2, WorkerStatus(ready=True, applied=1), 1.0)  # of another process
    assert workers.silent() == (0,)
    workers.exited(0, 1, 1)
    assert workers.silent() == ()


def test_those_who_do_not_ask_keep_the_others_waiting_for_ten_minutes_at_most() -> None:
    workers = entered()
    assert workers.late_at(joins=False) is None, "nobody has asked: that may be a long import"
    workers.said(1, 1, WorkerStatus(ready=True, applied=1, limits=ProgressLimits(soft=2.0)), 1.0)
    assert workers.late_at(joins=False) == 601.0
    assert workers.late_at(joins=True) is None
    workers.exited(1, 1, 0)
    assert workers.late_at(joins=False) == 601.0, "ranks of other nodes wait as it did"
    workers.leave_out_silent()
    assert workers.outside() == (0,)
    assert workers.late_at(joins=False) is None
    last_words = entered()
    last_words.said(
        1, 1, WorkerStatus(ready=True, applied=1, ends=True, limits=ProgressLimits(soft=2.0)), 1.0
    )  # heard when it had ended
    assert last_words.late_at(joins=False) == 601.0


def test_a_longer_limit_is_a_longer_wait_for_those_who_do_not_ask() -> None:
    workers = entered()
    workers.said(1, 1, WorkerStatus(ready=True, applied=1, limits=ProgressLimits(soft=900.0)), 1.0)
    assert workers.late_at(joins=False) == 901.0


def test_who_gives_up_by_itself_is_given_no_world_without_those_who_do_not_ask() -> None:
    """Its barrier_timeout says how long it waits; a world with fewer would end that wait."""
    workers = entered()
    workers.said(1, 1, WorkerStatus(ready=True, applied=1, limits=ProgressLimits(soft=2.0, barrier=5.0)), 1.0)
    assert workers.late_at(joins=False) is None


def test_nobody_is_paused_twice() -> None:
    workers = entered()
    assert len(workers.pause(WorldChangeEvent.SCALE_DOWN, 0.0)) == 2
    assert workers.pause(WorldChangeEvent.SCALE_DOWN, 0.0) == []


def test_stopping_escalates_and_then_gives_up() -> None:
    workers = entered(1)
    assert signals(workers.stop(SIGTERM, now=10.0)) == [(0, SIGTERM)]
    assert workers.deadline() == 12.0
    assert workers.tick(11.9) == []
    assert signals(workers.tick(12.0)) == [(0, SIGKILL)]
    assert workers.deadline() == 12.0 + ABANDON_S
    (note,) = workers.tick(12.0 + ABANDON_S)
    assert isinstance(note, do.Note)
    assert note.warning
    assert not workers.living()
    assert workers.deadline() is None


def told_to_end(effects: list[do.Effect]) -> list[tuple[int, WorkerState, int]]:
    return [(effect.local_rank, effect.state, effect.signum) for effect in effects if isinstance(effect, do.Tell)]


@pytest.mark.parametrize(("stands", "state"), [(True, WorkerState.HEALTHY), (False, WorkerState.PAUSED)])
def test_who_is_to_end_is_told_so_first(stands: bool, state: WorkerState) -> None:
    workers = entered(1)
    told, signal = workers.stop(SIGTERM, now=0.0, stands=stands)
    assert told_to_end([told]) == [(0, state, SIGTERM)]
    assert isinstance(signal, do.SignalWorker)


def test_who_has_left_its_world_is_not_told_that_it_stands() -> None:
    workers = entered(1)
    workers.pause(WorldChangeEvent.SCALE_DOWN, 0.0)
    assert told_to_end(workers.stop(SIGTERM, now=0.0, stands=True)) == [(0, WorkerState.PAUSED, SIGTERM)]


def test_who_is_killed_is_told_nothing() -> None:
    assert told_to_end(entered(1).stop(SIGKILL, now=0.0)) == []


def test_a_function_that_has_returned_is_kept_until_all_have() -> None:
    workers = entered(2)
    assert workers.returned(0, launch=1) == []
    assert workers.done() == (0,)
    assert workers.release() == []
    assert workers.returned(1, launch=1) == []
    assert workers.release() == [do.Release(0, 1), do.Release(1, 1)]
    assert workers.release() == []
    assert not workers.finished()
    assert [workers.exited(local_rank, launch=1, exitcode=0) for local_rank in (0, 1)] == [None, None]
    assert workers.finished()


def test_a_function_that_has_returned_is_let_go_where_others_are_stopped() -> None:
    workers = entered(2)
    workers.returned(0, launch=1)
    effects = workers.stop(SIGTERM, now=0.0)
    assert effects[0] == do.Release(0, 1)
    assert signals(effects) == [(1, SIGTERM)]
    assert workers.returned(1, launch=1) == [do.Release(1, 1)], "its handler has only noted the signal"
    assert signals(workers.stop(SIGKILL, now=1.0)) == [(0, SIGKILL), (1, SIGKILL)]
    workers.exited(0, launch=1, exitcode=0)
    assert workers.done() == (0,)


def test_a_process_that_fails_after_its_function_has_returned_has_failed() -> None:
    workers = entered(1)
    workers.returned(0, launch=1)
    workers.release()
    assert workers.exited(0, launch=1, exitcode=-6) is not None


def test_who_has_left_its_call_is_in_no_world_and_breaks_the_one_that_it_was_in() -> None:
    workers = entered(2)
    workers.said(0, 1, WorkerStatus(ready=True, applied=1, called=1, gone=True, ends=True), 1.0)
    assert workers.incomplete
    assert [worker.local_rank for worker in workers.eligible()] == [1]
    effects = workers.enter(sealed(replace(member("a"), workers=(Worker(1, 1),)), number=2), LIFE, 3, 2.0)
    assert {effect.local_rank for effect in effects if isinstance(effect, do.Tell)} == {1}
    workers.said(0, 1, WorkerStatus(ready=True, applied=2, called=1, gone=True, ends=True), 3.0)
    assert not workers.incomplete, "that world was made without it"


@pytest.mark.parametrize("gone", [True, False])
def test_who_has_left_its_call_is_no_proof_that_the_work_is_done(gone: bool) -> None:
    workers = entered(2)
    workers.said(0, 1, WorkerStatus(ready=True, applied=1, called=1, gone=gone, ends=True), 1.0)
    workers.exited(1, launch=1, exitcode=1)
    workers.exited(0, launch=1, exitcode=0)
    assert workers.finished() is not gone


def test_a_second_signal_kills_at_once() -> None:
    workers = entered(1)
    workers.stop(SIGTERM, now=0.0)
    assert signals(workers.stop(SIGTERM, now=1.0)) == []
    assert signals(workers.stop(SIGKILL, now=1.0)) == [(0, SIGKILL)]


@pytest.mark.parametrize(("code", "state"), [(0, State.DONE), (1, State.FAILED), (-9, State.FAILED)])
def test_an_exit_that_nobody_asked_for(code: int, state: State) -> None:
    workers = entered(1)
    failure = workers.exited(0, launch=1, exitcode=code)
    assert workers._slots[0].state is state
    assert (failure is not None) == (state is State.FAILED)


@pytest.mark.parametrize("code", [0, 1, -15])
def test_an_exit_that_was_asked_for_is_neither_success_nor_failure(code: int) -> None:
    workers = entered(1)
    workers.stop(SIGTERM, now=0.0)
    assert workers.exited(0, launch=1, exitcode=code) is None
    assert workers.done() == ()
    assert workers.eligible() == ()


def test_an_exit_of_an_earlier_launch_changes_nothing() -> None:
    workers = entered(1)
    workers.stop(SIGTERM, now=0.0)
    workers.exited(0, launch=1, exitcode=-15)
    workers.renew()
    workers.enter(sealed(member("a", lives=2), number=2), LIFE, 1, 0.0)
    assert workers.exited(0, launch=1, exitcode=1) is None
    assert workers.living()


def test_renewed_workers_are_newcomers_and_rewound_ones_are_not() -> None:
    for begin_anew, incarnation in ((LocalWorkers.renew, 2), (LocalWorkers.rewind, 1)):
        workers = entered(1)
        workers.stop(SIGTERM, now=0.0)
        workers.exited(0, launch=1, exitcode=-15)
        begin_anew(workers)
        assert workers.eligible() == (Worker(0, incarnation),)
        effects = workers.enter(sealed(member("a", lives=incarnation), number=2), LIFE, 1, 0.0)
        (spawn,) = effects
        assert isinstance(spawn, do.Spawn)
        assert spawn.tell[0].launch == 2


def test_who_is_stopped_to_be_started_again_keeps_the_place() -> None:
    workers = entered(2)
    workers.stop(SIGTERM, now=0.0, rewinding=True)
    assert len(workers.eligible()) == 2
    workers.exited(0, launch=1, exitcode=-15)
    assert len(workers.eligible()) == 2


def test_what_is_done_is_not_done_again() -> None:
    workers = entered(2)
    workers.exited(0, launch=1, exitcode=0)
    workers.stop(SIGTERM, now=0.0, rewinding=True)
    workers.exited(1, launch=1, exitcode=-15)
    workers.rewind()
    assert workers.done() == (0,)


def test_one_worker_is_replaced_alone() -> None:
    workers = entered(2)
    workers.exited(0, launch=1, exitcode=1)
    workers.replace(0)
    assert workers.eligible() == (Worker(0, 2), Worker(1, 1))
    assert workers.restarts_of(0) == 1
    assert workers.restarts_of(1) == 0


def test_finished_means_that_somebody_is_done_and_nobody_works() -> None:
    workers = entered(3)
    workers.exited(0, launch=1, exitcode=1)
    assert not workers.finished()
    workers.exited(1, launch=1, exitcode=0)
    assert not workers.finished()
    workers.exited(2, launch=1, exitcode=0)
    assert workers.finished()


def test_the_living_are_never_begun_anew() -> None:
    for begin_anew in (LocalWorkers.renew, LocalWorkers.rewind):
        with pytest.raises(AssertionError, match="that live"):
            begin_anew(entered(1))


# --- progress

LIMITS = ProgressLimits(soft=2.0, hard=4.0, grace=0.5)
NO_LIMITS = ProgressLimits()


def watched(size: int = 1, limits: ProgressLimits = LIMITS, default: ProgressLimits = NO_LIMITS) -> LocalWorkers:
    workers = LocalWorkers(size, grace_s=2.0, limits=default)
    workers.enter(sealed(member("a", workers=size)), LIFE, 0, 0.0)
    for local_rank in range(size):
        workers.said(local_rank, 1, WorkerStatus(ready=True, applied=1, limits=limits), 0.0)
    return workers


def stuck() -> LocalWorkers:
    workers = watched()
    workers.hangs(0, 1, 0.0, 2.0)
    workers.pause(None, 2.0)
    assert workers.give_up_on(0, 2.1)
    return workers


def test_nobody_is_watched_who_has_not_said_how() -> None:
    workers = entered(1)
    assert workers.deadline() is None
    assert workers.look(0) == []
    assert not workers.hangs(0, 1, 0.0, 1e6)
    assert not workers.overdue(0, 1e6)
    workers.pause(None, 1e6)
    assert not workers.give_up_on(0, 2e6)


def test_its_own_limits_come_before_those_of_the_agent() -> None:
    default = ProgressLimits(soft=7.0, hard=9.0)
    assert watched(limits=ProgressLimits(), default=default).deadline() == 7.0
    assert watched(limits=ProgressLimits(soft=3.0), default=default).deadline() == 3.0
    assert watched(limits=ProgressLimits(hard=5.0), default=default).deadline() == 5.0


def test_progress_is_looked_at_once_until_the_answer_is_there() -> None:
    workers = watched()
    assert workers.tick(1.9) == []
    assert workers.tick(2.0) == [do.LookAtProgress(0, 1)]
    assert workers.tick(2.1) == []
    assert workers.deadline() is None
    assert not workers.hangs(0, 2, 0.0, 2.1), "of another process"
    assert workers.tick(2.2) == []
    assert workers.hangs(0, 1, 0.0, 2.2)
    assert workers.deadline() == 4.0


def test_stacks_are_shown_once() -> None:
    workers = watched()
    assert workers.show(0) == [do.ShowStacks(0, 1)]
    assert workers.show(0) == []


def test_who_was_told_to_leave_and_has_not_is_leaving() -> None:
    workers = watched()
    assert not workers.leaving(0)
    workers.pause(None, 2.0)
    assert workers.leaving(0)
    workers.said(0, 1, WorkerStatus(ready=True, applied=2, limits=LIMITS), 2.1)
    assert not workers.leaving(0)


def test_a_new_world_does_not_hide_that_it_has_not_left_the_old_one() -> None:
    workers = watched()
    workers.enter(sealed(member("a"), number=2), LIFE, 0, 1.0)
    assert workers.leaving(0)
    workers.said(0, 1, WorkerStatus(ready=True, applied=2, limits=LIMITS), 1.1)
    assert not workers.leaving(0), "that it has yet to enter the new one is nothing that it was told to leave"


def test_who_is_stuck_is_in_no_world_until_he_obeys() -> None:
    workers = stuck()
    assert workers.eligible() == ()
    assert workers.living()
    workers.said(0, 1, WorkerStatus(ready=True, applied=1, limits=LIMITS), 2.2)
    assert workers.eligible() == ()
    workers.said(0, 1, WorkerStatus(ready=True, applied=2, limits=LIMITS), 2.3)
    assert workers.eligible() == (Worker(0, 1),)


def test_who_makes_progress_is_not_given_up() -> None:
    workers = watched()
    workers.pause(None, 2.0)
    workers.hangs(0, 1, 1.9, 2.1)
    assert not workers.give_up_on(0, 2.1)
    assert workers.eligible() == (Worker(0, 1),)


def test_one_that_hangs_shows_its_stacks_and_is_ended_with_its_own_grace() -> None:
    workers = watched()
    assert workers.end(0, 4.0) == [do.ShowStacks(0, 1)]
    assert workers.eligible() == (Worker(0, 1),), "its place is its own until it has failed"
    assert workers.deadline() == 4.0 + SHOW_S
    assert signals(workers.tick(4.0 + SHOW_S)) == [(0, SIGTERM)]
    assert signals(workers.tick(4.0 + SHOW_S + 0.5)) == [(0, SIGKILL)]


def test_one_whose_stacks_were_shown_is_ended_at_once() -> None:
    workers = stuck()
    workers.show(0)
    assert workers.end(0, 4.0) == []
    assert signals(workers.tick(4.0)) == [(0, SIGTERM)]
    assert workers.eligible() == (), "the others have gone on without it"


def test_the_agents_own_grace_holds_where_a_worker_wishes_none() -> None:
    workers = watched(limits=ProgressLimits(soft=2.0))
    workers.end(0, 4.0)
    workers.tick(5.0)
    assert workers.deadline() == 7.0


@pytest.mark.parametrize(("code", "counts"), [(0, -SIGTERM), (-SIGKILL, -SIGKILL), (3, 3)])
def test_that_it_was_ended_is_its_failure_whatever_its_exit_code(code: int, counts: int) -> None:
    workers = watched()
    workers.end(0, 4.0)
    workers.tick(4.0 + SHOW_S)
    failure = workers.exited(0, 1, code)
    assert failure is not None
    assert failure.exitcode == counts
    assert workers.eligible() == ()


def test_one_that_finishes_while_it_writes_its_stacks_did_not_hang() -> None:
    workers = watched()
    workers.end(0, 4.0)
    assert workers.exited(0, 1, 0) is None
    assert workers.finished()


def test_one_that_hangs_and_that_nothing_ends_has_failed() -> None:
    workers = watched(2)
    workers.end(0, 4.0)
    workers.hurry(4.0)
    workers.tick(4.0 + ABANDON_S)
    (failure,) = workers.given_up()
    assert failure is not None
    assert (failure.local_rank, failure.exitcode) == (0, -SIGKILL)
    assert workers.given_up() == []
    assert workers.exited(0, 1, -SIGKILL) is None, "it ends after all"


def test_one_that_was_asked_to_end_and_is_given_up_has_not_failed() -> None:
    workers = entered(1)
    workers.stop(SIGKILL, 0.0)
    workers.tick(ABANDON_S)
    assert workers.given_up() == [None]


def test_to_stop_all_does_not_hurry_one_that_is_being_ended() -> None:
    workers = watched(2)
    workers.end(0, 4.0)
    assert signals(workers.stop(SIGTERM, 4.0)) == [(1, SIGTERM)]
    assert signals(workers.stop(SIGKILL, 4.0)) == [(0, SIGKILL), (1, SIGKILL)]
    assert signals(workers.tick(5.0)) == []


def test_to_hurry_ends_one_that_is_being_ended() -> None:
    workers = watched()
    workers.end(0, 4.0)
    assert signals(workers.hurry(4.0)) == [(0, SIGKILL)]
    assert signals(workers.tick(5.0)) == []


def test_nothing_of_a_process_that_hung_holds_for_the_next() -> None:
    workers = stuck()
    workers.end(0, 4.0)
    workers.exited(0, 1, -SIGKILL)
    workers.replace(0)
    assert workers.eligible() == (Worker(0, 2),)
    workers.enter(sealed(member("a", lives=2), number=2), LIFE, 0, 5.0)
    assert workers.deadline() is None
    assert not workers.leaving(0)
    assert workers.show(0) != []
    assert workers.exited(0, 2, 0) is None
    assert workers.done() == (0,)


# --- outside


def warm(size: int = 2) -> LocalWorkers:
    workers = LocalWorkers(size, grace_s=2.0)
    (spawn,) = workers.warm_up(sealed(member("b"), member("a", workers=size)), LIFE, 3, 0.0)
    assert isinstance(spawn, do.Spawn)
    assert [(t.state, t.info.rank) for t in spawn.tell] == [(WorkerState.PAUSED, 1 + i) for i in range(size)]
    return workers


def test_who_is_outside_is_in_no_world_until_it_asks_for_one() -> None:
    workers = warm()
    assert (workers.eligible(), workers.outside()) == ((), (0, 1))
    workers.said(0, 1, WorkerStatus(ready=False, applied=0), 1.0)
    assert workers.outside() == (0, 1)
    workers.said(0, 1, WorkerStatus(ready=True, applied=1), 1.0)
    assert (workers.eligible(), workers.outside()) == ((Worker(0, 1),), (1,))
    assert not workers.was_in_world()


def test_nobody_is_warmed_up_twice() -> None:
    workers = warm()
    assert workers.warm_up(sealed(member("b"), member("a", workers=2)), LIFE, 3, 0.0) == []


def test_the_warm_are_told_of_their_first_world_without_pause_and_without_change() -> None:
    workers = warm(1)
    workers.said(0, 1, WorkerStatus(ready=True, applied=1), 1.0)
    effects = workers.enter(sealed(member("b"), member("a"), number=2), LIFE, 3, 1.0)
    assert tells(effects) == [(0, WorkerState.HEALTHY, None, 2)]
    assert workers.was_in_world()
    assert not workers.leaving(0)


def test_the_outside_hold_nobody_up_who_leaves() -> None:
    assert warm().has_left()


def test_who_was_told_to_end_is_out_once_it_has_ended() -> None:
    """It may complete a step in its grace time."""
    workers = entered(1)
    workers.stop(15, 1.0)
    assert workers.has_left(), "it was not told to leave its world"
    assert not workers.are_out()
    workers.exited(0, 1, -15)
    assert workers.are_out()


def test_the_outside_are_dismissed_and_others_are_not() -> None:
    workers = entered(2)
    workers.exited(0, 1, 1)
    workers.replace(0)
    workers.warm_up(sealed(Member("a", 1, "host-a", 1, "", (Worker(1, 1), Worker(0, 2))), number=2), LIFE, 0, 0.0)
    assert signals(workers.dismiss(5.0)) == [(0, SIGTERM)]
    assert workers.deadline() == 7.0
    assert workers.exited(0, 2, -SIGTERM) is None
    workers.exited(1, 1, 0)
    assert workers.finished()


def test_a_failure_outside_has_the_rank_that_was_expected() -> None:
    failure = warm().exited(1, 1, 1)
    assert failure is not None
    assert failure.rank == 2


@pytest.mark.parametrize(("applied", "incomplete"), [(1, False), (0, False)])
def test_one_that_ends_outside_leaves_no_gap_in_any_world(applied: int, incomplete: bool) -> None:
    workers = warm(1)
    workers.said(0, 1, WorkerStatus(applied=applied), 1.0)
    workers.exited(0, 1, 0)
    assert workers.incomplete is incomplete


def test_one_that_ends_before_it_was_there_leaves_a_gap() -> None:
    workers = entered(2)
    workers.said(0, 1, WorkerStatus(ready=True, applied=1), 1.0)
    workers.enter(sealed(member("a", workers=2), number=2), LIFE, 0, 1.0)
    workers.exited(0, 1, 0)
    assert workers.incomplete


def test_the_others_may_wait_for_one_that_ends_before_it_has_worked() -> None:
    workers = entered(2)
    workers.said(0, 1, WorkerStatus(ready=True, applied=1), 1.0)
    workers.exited(0, 1, 0)
    assert workers.unbuilt
    assert not workers.incomplete
    workers = entered(2)
    workers.said(0, 1, WorkerStatus(ready=True, applied=1, worked=1), 1.0)
    workers.exited(0, 1, 0)
    assert not workers.unbuilt


def test_nobody_waits_for_one_that_ends_beside_the_world() -> None:
    """It did not leave the world before, and the others are in one without it; that one was called broken."""
    workers = entered(2)
    workers.said(0, 1, WorkerStatus(ready=True, applied=1, worked=1), 1.0)
    others = Member("a", 1, "host-a", 7000, "trainer", (Worker(1, 1),))
    workers.enter(sealed(others, number=2), LIFE, 0, 1.0)
    workers.exited(0, 1, 0)
    assert not workers.unbuilt
    assert not workers.incomplete


@pytest.mark.parametrize("code", [0, RESUME])
def test_one_that_has_left_for_good_is_done_and_leaves_no_gap(code: int) -> None:
    workers = entered(2)
    workers.said(0, 1, WorkerStatus(ready=True, applied=1, heeds=True, left=True), 1.0)
    assert workers.exited(0, 1, code) is None
    assert workers.done() == (0,)
    assert workers.have_left()
    assert not workers.unbuilt
    failure = workers.exited(1, 1, RESUME)
    assert failure is not None, "nobody had told this one to leave"


def test_one_that_has_saved_may_be_aborted_by_torch_at_its_very_end() -> None:
    workers = entered(2)
    saved = WorkerStatus(ready=True, applied=1, heeds=True, left=True, ends=True)
    workers.said(0, 1, saved, 1.0)
    workers.said(1, 1, saved.model_copy(update={"saved": True}), 1.0)
    assert workers.exited(0, 1, -6) is not None, "while it saved"
    assert workers.exited(1, 1, -6) is None


def test_who_came_before_others_worked_has_worked_with_them() -> None:
    workers = entered(2)
    workers.said(0, 1, WorkerStatus(ready=True, applied=1, worked=1), 1.0)
    workers.said(1, 1, WorkerStatus(ready=True, applied=1), 1.0)
    workers.exited(0, 1, 0)
    workers.enter(sealed(member("a", workers=2), number=2), LIFE, 0, 1.0)
    assert (workers.since(), workers.through()) == (1, 1)


def test_one_that_the_others_have_left_behind_would_do_again_what_they_did() -> None:
    workers = watched(2)
    alone = Member("a", 1, "host-a", 1, "", (Worker(1, 1),))
    workers.enter(sealed(alone, number=2), LIFE, 0, 1.0)
    workers.said(1, 1, WorkerStatus(ready=True, applied=3, worked=2), 1.0)
    workers.exited(1, 1, 0)
    assert (workers.since(), workers.through()) == (0, 2)


def test_one_that_says_that_it_is_through_as_it_is_asked_to_end_is_through() -> None:
    workers = entered(2)
    workers.said(0, 1, WorkerStatus(ready=True, applied=1, worked=1), 1.0)
    workers.stop(15, 1.0)
    workers.said(0, 1, WorkerStatus(ready=True, applied=1, worked=1, ends=True, through=True), 1.0)
    workers.exited(0, 1, -15)
    assert workers.through() == 1


def test_one_that_ends_in_good_order_because_it_was_asked_to_is_not_through() -> None:
    workers = entered(2)
    workers.said(0, 1, WorkerStatus(ready=True, applied=1, worked=1), 1.0)
    workers.stop(15, 1.0)
    workers.said(0, 1, WorkerStatus(ready=True, applied=1, worked=1, ends=True), 1.0)
    workers.exited(0, 1, 0)
    assert not workers.through()


def test_one_that_has_ended_while_the_world_was_made_leaves_a_gap() -> None:
    workers = watched(2)
    workers.end(0, 4.0)
    workers.enter(sealed(member("a", workers=2), number=2), LIFE, 0, 4.0)
    assert workers.incomplete
    workers.enter(sealed(Member("a", 1, "host-a", 1, "", (Worker(1, 1),)), number=3), LIFE, 0, 4.0)
    assert not workers.incomplete


def test_the_fault_that_ended_a_world_is_told_to_those_who_were_there() -> None:
    workers = entered(1)
    told = replace(sealed(member("a"), number=2), fault=WorkerFault(round=1, text="why"))
    assert [(e.state, e.fault) for e in workers.enter(told, LIFE, 0, 0.0) if isinstance(e, do.Tell)] == [
        (WorkerState.PAUSED, WorkerFault(round=1, text="why")),
        (WorkerState.HEALTHY, WorkerFault(round=1, text="why")),
    ]


def test_the_lost_ranks_are_told_with_the_change() -> None:
    workers = LocalWorkers(1, grace_s=2.0)
    workers.enter(sealed(member("b", workers=2), member("a"), member("c", workers=2)), LIFE, 0, 0.0)
    one_left = Member("c", 1, "host-c", 7000, "trainer", (Worker(1, 1),))
    smaller = workers.enter(sealed(member("a"), one_left, number=2), LIFE, 0, 0.0)
    assert [e.lost for e in smaller if isinstance(e, do.Tell)] == [(0, 1, 3)] * 2
    skipped = workers.enter(sealed(member("a"), number=4), LIFE, 0, 0.0)
    assert [e.lost for e in skipped if isinstance(e, do.Tell)] == [()] * 2, "who was lost in the world between?"
