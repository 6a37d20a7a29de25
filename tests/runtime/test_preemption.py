"""A worker that is told to leave for good."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fake_agent import FakeAgent, Worker, an_event, wait_until
from softrun.runtime.channel.inbox import LOOK_INTERVAL_S
from softrun.runtime.events import RESUME, Preemption, WorkerState, WorldChangeEvent
from softrun.runtime.preemption import Leave, LeaveCallbacks

SAVES = """
import time
from pathlib import Path
import softrun
from softrun.runtime import on_leave, reached_preemption_sync_point, worlds
def save(leave):
    print("saves after", step, "of", leave.step, leave.reason, leave.alone, round(leave.seconds_left))
{register}
step = 0
for world in worlds():
    print("in world", world.round)
    with world.process_group("gloo"):
        while True:
            step += 1
            time.sleep(0.005)
            {check}
    print("left", world.round)
"""
CALLBACK = SAVES.format(register="on_leave(save)", check="world.check(step)")
ALONE = SAVES.format(register="on_leave(save, alone=True)", check="world.check(step)")
UNCOUNTED = SAVES.format(register="on_leave(save)", check="world.check()")


def tell(agent: FakeAgent, worker: Worker, **fields: object) -> None:
    preemption = Preemption(reason="a test", seconds=30, **fields)  # type: ignore[arg-type]
    event = an_event(agent.round, info=worker.info).model_copy(update={"preemption": preemption})
    worker.writer.write(event)


def test_a_callback_is_called_after_the_step_and_ends_the_worker(agent: FakeAgent) -> None:
    worker = agent.start(CALLBACK)
    agent.form([worker])
    wait_until(lambda: worker.step > 5, "steps")
    status = worker.status
    assert status is not None
    assert status.heeds
    after = worker.step + 20
    tell(agent, worker, after=after)
    assert worker.ends() == RESUME
    assert f"saves after {after} of {after} a test False 30" in worker.output
    status = worker.status
    assert status is not None
    assert status.left
    assert not status.through


@pytest.mark.parametrize(
    ("check", "register"),
    [
        ("world.check(step)\n            if world.leaving: raise SystemExit(softrun.RESUME)", ""),
        ("if reached_preemption_sync_point(step): raise SystemExit(softrun.RESUME)", ""),
        ("world.check(step)\n            if reached_preemption_sync_point(step): raise SystemExit(softrun.RESUME)", ""),
    ],
)
def test_the_loop_asks_itself(agent: FakeAgent, check: str, register: str) -> None:
    worker = agent.start(SAVES.format(register=register, check=check))
    agent.form([worker])
    wait_until(lambda: worker.step > 5, "steps")
    agent.hold([worker], worker.step + 10)
    held = wait_until(lambda: (progress := worker.writer.read_progress()) and progress.step, "the held step")
    tell(agent, worker, after=held + 30)
    assert worker.ends() == RESUME
    assert worker.step == held + 30


def test_a_loop_without_steps_saves_in_the_world_that_it_was_told_of(agent: FakeAgent) -> None:
    worker = agent.start(UNCOUNTED)
    agent.form([worker])
    worker.says("in world 1")
    agent.pause([worker], WorldChangeEvent.SCALE_DOWN)
    agent.form([worker])
    tell(agent, worker)
    assert worker.ends() == RESUME
    assert "of 0 a test False" in worker.output


def test_a_node_that_leaves_alone_calls_those_that_want_to_know(agent: FakeAgent) -> None:
    worker, other = agent.start(ALONE), agent.start(CALLBACK)
    for each in (worker, other):
        agent.form([each])
        wait_until(lambda each=each: each.step > 5, "steps")
        after = each.step + 20
        event = an_event(
            agent.round, WorkerState.PAUSED, WorldChangeEvent.SCALE_DOWN, each.info, leave_after=after
        ).model_copy(update={"preemption": Preemption(reason="a test", after=after, seconds=9, alone=True)})
        each.writer.write(event)
        each.says(f"left {agent.round}")
        told = wait_until(lambda each=each: each.status, "its status")
        assert not told.left
        expected = f"saves after {after} of {after} a test True 9"
        time.sleep(2 * LOOK_INTERVAL_S)  # it looks again and again whether there is another world
        assert each.output.count(expected) == (each is worker)


def test_callbacks_are_called_in_their_order_and_can_be_removed() -> None:
    called: list[str] = []
    callbacks = LeaveCallbacks()
    preemption = Preemption(reason="why", after=3, seconds=5)
    leave = Leave(an_event().model_copy(update={"preemption": preemption}))
    assert not callbacks
    remove = callbacks.add(lambda _: called.append("first"), alone=True)
    callbacks.add(lambda _: called.append("second"), alone=False)
    assert callbacks
    callbacks.call(leave)
    assert called == ["first", "second"]
    alone = Leave(an_event().model_copy(update={"preemption": preemption.model_copy(update={"alone": True})}))
    callbacks.call(alone)
    assert called == ["first", "second", "first"]
    remove()
    remove()
    callbacks.call(alone)
    assert called == ["first", "second", "first"]
    assert 4 < leave.seconds_left <= 5
    assert repr(leave).startswith("Leave('why', after step 3, ")


def test_the_time_that_is_left_ends_at_nothing() -> None:
    event = an_event().model_copy(update={"preemption": Preemption(seconds=0.01)})
    leave = Leave(event)
    time.sleep(0.02)
    assert leave.seconds_left == 0
    with pytest.raises(ValueError, match="nobody"):
        Leave(an_event())


def test_a_step_that_is_told_twice_takes_no_time(agent: FakeAgent) -> None:
    """The agents count on what a step takes; they were off by thousands of steps."""
    worker = agent.start(SAVES.format(register="", check="world.check(step); world.check(step)"))
    agent.form([worker])
    wait_until(lambda: worker.step > 5, "steps")
    progress = worker.writer.read_progress()
    assert progress is not None
    assert progress.step_s >= 0.005


def test_a_trainer_without_a_callback_any_more_is_not_asked_to_save(agent: FakeAgent) -> None:
    worker = agent.start(SAVES.format(register="on_leave(save)()", check="world.check(step)"))
    agent.form([worker])
    wait_until(lambda: worker.step > 5, "steps")
    status = worker.status
    assert status is not None
    assert not status.heeds
    tell(agent, worker, after=worker.step + 2)
    wait_until(lambda: worker.step > 100, "it goes on")
    status = worker.status
    assert status is not None
    assert not status.left


def test_a_callback_may_ask_for_the_event(agent: FakeAgent) -> None:
    """It is not called again from there, nor in a thread that asks."""
    worker = agent.start(
        SAVES.format(
            register="""
def ask(leave):
    softrun.get_worker_event()
    world.check(step)
    print("asked")
import threading
def poll():
    while softrun.get_worker_event():
        time.sleep(0.001)
threading.Thread(target=poll, daemon=True).start()
on_leave(ask)
""",
            check="world.check(step)",
        )
    )
    agent.form([worker])
    wait_until(lambda: worker.step > 5, "steps")
    tell(agent, worker, after=worker.step + 20)
    assert worker.ends() == RESUME
    assert worker.output.count("asked") == 1


def test_to_be_told_after_which_step_to_leave_ends_no_world(agent: FakeAgent) -> None:
    """Nobody is told of a change, and no collective is interrupted, also if nobody was told to wait before."""
    register = "softrun.on_world_change(lambda event: print('change to', event.worker_state.value))\non_leave(save)"
    worker = agent.start(SAVES.format(register=register, check="world.check(step)"))
    agent.form([worker])
    wait_until(lambda: worker.step > 5, "steps")
    tell(agent, worker, after=worker.step + 100)
    assert worker.ends() == RESUME
    assert "change to" not in worker.output.partition("in world 1")[2]


def test_a_state_is_of_the_world_that_its_trainer_is_in(agent: FakeAgent, tmp_path: Path) -> None:
    """A save while the next world was named already was taken for one in that world, and synced there first."""
    worker = agent.start(
        f"""
        import time
        import softrun
        state = softrun.State(step=0)
        for world in softrun.worlds(state=state):
            with world.process_group("gloo"):
                while state.step < 200:
                    time.sleep(0.005)
                    state.commit()
                    if state.step % 10 == 0:
                        state.save({str(tmp_path / "checkpoint")!r})
                        print("saved in", world.round, "as of", state._round)
                    world.check(state.step)
        """
    )
    agent.form([worker])
    wait_until(lambda: worker.step > 5, "steps")
    after = worker.step + 60
    agent.pause([worker], WorldChangeEvent.SCALE_UP, leave_after=after)
    agent.form([worker], WorldChangeEvent.SCALE_UP, leave_after=after)
    assert worker.ends() == 0
    assert {line for line in worker.output.splitlines() if line.startswith("saved")} == {
        "saved in 1 as of 1",
        "saved in 2 as of 2",
    }
