"""Real workers with real gloo groups: they lose peers and go on in their processes."""

from __future__ import annotations

import json
import signal
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from fake_agent import COUNTS, FakeAgent, Worker, an_event, wait_until
from softrun.runtime.channel.progress import BEAT_INTERVAL_S
from softrun.runtime.events import ProgressLimits, WorkerState, WorkerStatus, WorldChangeEvent

pytestmark = pytest.mark.processes

# The RFC's loop ("Description"), with the names filled in. The model keeps the group referenced after it is destroyed.
RFC_LOOP = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from softrun.runtime import get_worker_info
torch.set_num_threads(1)
worker_info = get_worker_info()
model, step = torch.nn.Linear(8, 8), 0
for attempt in range(5):
    try:
        dist.init_process_group("gloo", **worker_info.get_pg_parameters())
        parallel = DistributedDataParallel(model)
        while True:
            parallel(torch.ones(2, 8)).sum().backward()
            step += 1
            if step % 10 == 0:
                print("world of", dist.get_world_size(), "goes on")
    except Exception as e:
        print("caught", type(e).__name__)
        dist.destroy_process_group()
        worker_info = get_worker_info()
"""

WORLDS = """
import logging, os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from softrun.runtime import worlds
logging.basicConfig(level=logging.INFO)
torch.set_num_threads(1)
model, step, total = torch.nn.Linear(8, 8), 0, int(os.environ.get("TOTAL", 10**9))
for world in worlds():
    with world.process_group():
        state = [model.state_dict(), step]
        dist.broadcast_object_list(state, src=0)
        model.load_state_dict(state[0])
        step = state[1]
        print("rank", world.rank, "of", world.world_size, "begins at", "nothing" if step == 0 else "something")
        parallel, begin = DistributedDataParallel(model), step
        while step < total:
            parallel(torch.ones(2, 8)).sum().backward()
            time.sleep(0.005)
            step += 1
            if step == begin + 10:
                print("world of", world.world_size, "goes on")
            if os.environ.get("BUG") == str(world.rank) and step == 20:
                raise LookupError("a bug of the trainer")
            world.check(step)
print("done at", step, dist.is_initialized())
"""


def all_say(workers: list[Worker], line: str) -> None:
    for worker in workers:
        worker.says(line)


def a_world(agent: FakeAgent, script: str, size: int, **environment: str) -> list[Worker]:
    """New workers, which go on in their first world."""
    workers = [agent.start(script, **environment) for _ in range(size)]
    agent.form(workers)
    all_say(workers, f"world of {size} goes on")
    return workers


def one_reports_broken(workers: list[Worker], round_: int) -> None:
    """A neighbour of whoever has ended does; the others wait for their agent's word."""
    told = {"ready": True, "limits": ProgressLimits(), "applied": 1, "broken_round": round_}
    expected = [WorkerStatus(**told), WorkerStatus(**told, counts=1)]
    wait_until(lambda: any(worker.status in expected for worker in workers), f"{expected}")


def has_left(worker: Worker, round_: int) -> bool:
    return worker.status is not None and worker.status.broken_round == round_


def lose(agent: FakeAgent, workers: list[Worker], index: int, signum: int) -> None:
    """Take one of `workers` out by a signal; the others go on in a world without it."""
    workers.pop(index).signal(signum)
    agent.pause(workers, WorldChangeEvent.SCALE_DOWN)
    agent.form(workers, WorldChangeEvent.SCALE_DOWN)
    all_say(workers, f"world of {len(workers)} goes on")


@pytest.mark.slow
def test_the_loop_of_the_rfc_survives_a_killed_and_a_hung_peer(agent: FakeAgent) -> None:
    workers = a_world(agent, RFC_LOOP, 4)
    lose(agent, workers, 2, signal.SIGKILL)
    lose(agent, workers, 1, signal.SIGSTOP)
    assert [worker.process.poll() for worker in workers] == [None, None]


def test_survivors_go_on_and_a_replacement_is_healed(agent: FakeAgent, tmp_path: Path) -> None:
    log = tmp_path / "steps"
    log.mkdir()
    workers = a_world(agent, WORLDS, 4, SOFTRUN_STEP_LOG=str(log))
    lose(agent, workers, 2, signal.SIGKILL)
    workers.append(agent.start(WORLDS, SOFTRUN_STEP_LOG=str(log)))
    agent.pause(workers[:3], WorldChangeEvent.SCALE_UP)
    agent.form(workers, WorldChangeEvent.SCALE_UP)
    workers[3].says("rank 3 of 4 begins at something")
    workers[3].says("world of 4 goes on")
    assert [worker.process.poll() for worker in workers] == [None] * 4

    lines = [json.loads(line) for line in (log / f"{workers[0].process.pid}.jsonl").read_text().splitlines()]
    assert {line["round"]: line["world_size"] for line in lines} == {1: 4, 2: 3, 3: 4}
    assert {(line["pid"], line["rank"]) for line in lines} == {(workers[0].process.pid, 0)}
    steps = [line["step"] for line in lines]
    assert all(0 <= after - before <= 1 for before, after in pairwise(steps)), "a step was lost"


@pytest.mark.slow
def test_a_peer_that_hangs_is_left_behind(agent: FakeAgent) -> None:
    workers = a_world(agent, WORLDS, 3)
    lose(agent, workers, 1, signal.SIGSTOP)


@pytest.mark.slow
def test_a_group_that_a_member_never_joins_is_built_in_the_next_world(agent: FakeAgent) -> None:
    workers = [agent.start(WORLDS) for _ in range(2)]
    absent = agent.start("import signal; signal.pause()")
    agent.form([*workers, absent])
    for worker in workers:
        wait_until(lambda worker=worker: worker.writer.read_status(), "the worker to have its world")  # type: ignore[misc]
    agent.pause(workers, WorldChangeEvent.SCALE_DOWN)
    agent.form(workers, WorldChangeEvent.SCALE_DOWN)
    all_say(workers, "world of 2 goes on")


@pytest.mark.slow
def test_the_trainers_own_exception_is_raised_at_once(agent: FakeAgent) -> None:
    workers = [agent.start(WORLDS, BUG="1") for _ in range(2)]
    agent.form(workers)
    assert workers[1].ends() == 1
    assert workers[1].output.splitlines()[-1].endswith("LookupError: a bug of the trainer")
    one_reports_broken(workers[:1], 1)
    workers[0].signal(signal.SIGINT)
    workers[0].ends()
    assert workers[0].output.splitlines()[-1].endswith("KeyboardInterrupt")


@pytest.mark.slow
def test_it_ends_when_the_body_ends(agent: FakeAgent) -> None:
    workers = [agent.start(WORLDS, TOTAL="50") for _ in range(2)]
    agent.form(workers)
    all_say(workers, "done at 50 False")
    assert [worker.ends() for worker in workers] == [0, 0]


def test_without_a_group_a_pass_ends_with_its_world(agent: FakeAgent) -> None:
    worker = agent.start(
        """
        from softrun.runtime import WorldChanged, worlds
        for world in worlds():
            print("pass", world.round)
            while not world.changed and world.round < 3:
                pass
            try:
                world.check()
            except WorldChanged as change:
                print(change)
        print("done")
        """
    )
    for round_ in (1, 2, 3):
        agent.form([worker])
        worker.says(f"pass {round_}")
    assert worker.ends() == 0
    assert worker.output.count("is over") == 2


def is_idle(worker: Worker, world: int) -> bool:
    status = worker.status
    return status is not None and status.idle == world


def test_a_world_that_the_trainer_cannot_use_is_waited_out(agent: FakeAgent) -> None:
    script = """
from datetime import timedelta
from softrun.runtime import worlds
for world in worlds():
    with world.process_group():
        if world.world_size % 2:
            print("waits in world", world.round)
            world.wait_for_change(timedelta(seconds=0.5 if world.round == 3 else 100))
        print("uses world", world.round)
        world.wait_for_change()
"""
    workers = [agent.start(script) for _ in range(2)]
    for members, line in (
        (workers[:1], "waits in world 1"),
        (workers, "uses world 2"),
        (workers[:1], "waits in world 3"),
    ):
        agent.form(members)
        all_say(members, line)
        for worker in members:
            wait_until(partial(is_idle, worker, agent.round), "the word that it takes no step")
        if agent.round < 3:
            agent.pause(members, WorldChangeEvent.SCALE_UP)
    assert workers[0].ends() == 1
    assert "TimeoutError: this trainer cannot use world 3, of size 1, and no other world followed" in workers[0].output


def test_a_trainer_that_counts_waits_and_leaves_between_two_steps(agent: FakeAgent) -> None:
    worker = agent.start(COUNTS)
    agent.form([worker])
    worker.says("in world 1")
    up = WorldChangeEvent.SCALE_UP

    def waits_after(step_: int) -> None:
        agent.hold([worker], step_)
        wait_until(lambda: worker.step == step_, f"step {step_}")
        time.sleep(0.05)  # ten steps
        assert worker.step == step_

    first = wait_until(lambda: worker.step, "a step") + 20
    waits_after(first)
    waits_after(first + 5)
    agent.hold([worker], None)
    wait_until(lambda: worker.step > first + 20, "it goes on")
    last = worker.step + 30
    agent.hold([worker], last - 10)
    agent.pause([worker], up, leave_after=last)
    agent.form([worker], up, leave_after=last)
    worker.says(f"left 1 after {last}")
    worker.says("in world 2")
    agent.pause([worker], up, leave_after=10**9)
    agent.form([worker], up, leave_after=10**9)
    wait_until(lambda: worker.step > last + 20, "it works on in its world")
    assert "in world 3" not in worker.output
    agent.pause([worker], WorldChangeEvent.SCALE_DOWN)
    agent.form([worker])
    worker.says("in world 4")


NOTES_SIGNALS = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('noted'))\n"


def test_a_worker_that_is_told_to_end_comes_out_of_its_loop(agent: FakeAgent) -> None:
    worker = agent.start(NOTES_SIGNALS + COUNTS + "print('over')")
    agent.form([worker])
    worker.says("in world 1")
    agent.tell_to_end(worker, WorkerState.PAUSED)
    assert worker.ends() == 0
    assert worker.output.splitlines()[-1] == "over"
    assert (status := worker.status)
    assert not status.through


def test_in_a_world_that_stands_the_trainer_decides_when_it_ends(agent: FakeAgent) -> None:
    worker = agent.start(NOTES_SIGNALS + COUNTS + "print('over')")
    agent.form([worker])
    worker.says("in world 1")
    agent.tell_to_end(worker, WorkerState.HEALTHY)
    worker.says("noted")
    noted_at = worker.step
    wait_until(lambda: worker.step > noted_at + 20, "it works on in its world")
    agent.pause([worker], WorldChangeEvent.SCALE_DOWN)
    wait_until(lambda: "left 1" in worker.output, "its world is over")


def test_without_a_handler_nothing_runs_after_the_loop(agent: FakeAgent) -> None:
    worker = agent.start(COUNTS + "print('over')")
    agent.form([worker])
    worker.says("in world 1")
    worker.writer.write(an_event(1, WorkerState.PAUSED, None, worker.info, signum=signal.SIGTERM))
    wait_until(lambda: "left 1" in worker.output, "its world is over")
    time.sleep(0.1)  # as if the signal came late
    worker.signal(signal.SIGTERM)
    assert worker.ends() == -signal.SIGTERM
    assert "over" not in worker.output


def test_who_asks_for_a_world_when_told_to_end_exits(agent: FakeAgent) -> None:
    script = "import time; from softrun import get_worker_info; get_worker_info(); print('in'); time.sleep(1); "
    worker = agent.start(NOTES_SIGNALS + script + "print(get_worker_info().rank)")
    agent.form([worker])
    worker.says("in")
    agent.tell_to_end(worker, WorkerState.PAUSED)
    assert worker.ends() == 128 + signal.SIGTERM


PINGS = """
import time
from softrun.runtime import worlds
for world in worlds():
    world.ping()
    time.sleep(0.1)  # the event is there
    world.check(1)
"""


def test_who_pings_is_not_late_while_it_waits_as_told(agent: FakeAgent) -> None:
    worker = agent.start(PINGS)
    agent.form([worker])
    agent.hold([worker], 1)

    def last_s() -> float:
        progress = worker.writer.read_progress()
        return progress.last_s if progress is not None and progress.step else 0.0

    first = wait_until(last_s, "the step")
    wait_until(lambda: last_s() > first + 2 * BEAT_INTERVAL_S, "it shows that it goes on")


def test_a_setting_that_breaks_every_group_is_raised_after_one_more_world(agent: FakeAgent) -> None:
    """Nobody is lost: the same members would form world after world."""
    worker = agent.start(WORLDS, GLOO_SOCKET_IFNAME="no-such-interface")
    for round_ in (1, 2):
        agent.form([worker])
        wait_until(partial(has_left, worker, round_), f"the worker finds world {round_} broken")
    agent.form([worker])
    assert worker.ends() == 1, worker.output
    assert worker.output.count("though nobody was lost: it tries once more") == 1
    assert "Unable to find address for: no-such-interface" in worker.output.splitlines()[-1]
