"""What a worker does when its agent gives no sign of itself."""

from __future__ import annotations

import time

import pytest

from fake_agent import COUNTS, FakeAgent, Worker, wait_until
from softrun.runtime.clock import boottime
from softrun.runtime.events import WorldChangeEvent

pytestmark = pytest.mark.processes

LONG_S = 3600.0
# The ranks sum among themselves, and nothing else ever looks for a change.
SUMS = """
import torch, torch.distributed as dist
from softrun.runtime import worlds
torch.set_num_threads(1)
for world in worlds():
    with world.process_group():
        print("sums in world", world.round)
        while True:
            dist.all_reduce(torch.ones(8))
"""
WRAPPED = """
import time
from softrun.runtime import World
from softrun.runtime.inprocess import Wrapper
@Wrapper()
def train(world: World):
    print("trains in world", world.round)
    if world.round == 1:
        time.sleep(3600)
train()
"""
ASKS = """
from softrun.runtime import get_worker_event, get_worker_info
get_worker_info()
print("asks")
while get_worker_event().worker_state.value == "HEALTHY":
    pass
print("paused")
get_worker_info()
print("goes on in", get_worker_event().round)
"""

POLLS = """
import time
from softrun.runtime import get_worker_event, get_worker_info
round_ = get_worker_info() and get_worker_event().round
print("polls in", round_)
while get_worker_event().worker_state.value == "HEALTHY":
    pass
while get_worker_event().worker_state.value == "PAUSED":
    time.sleep(0.001)
print("goes on in", get_worker_event().round)
"""


def silence(workers: list[Worker], leave_in_s: float = 0.0) -> None:
    """The agent's last word was a while ago."""
    now = boottime()
    for worker in workers:
        worker.writer.allow(now, now + leave_in_s)


def silence_until_it_leaves(worker: Worker) -> None:
    silence([worker])
    wait_until(lambda: "leaving world 1" in worker.output, "it leaves")


def speak(workers: list[Worker]) -> None:
    until = boottime() + LONG_S
    for worker in workers:
        worker.writer.allow(until, until)


def test_it_waits_between_two_steps_and_goes_on_where_it_was(agent: FakeAgent) -> None:
    worker = agent.start(COUNTS)
    agent.form([worker])
    wait_until(lambda: worker.step > 20, "steps")
    silence([worker], leave_in_s=LONG_S)
    time.sleep(0.05)  # the step that is under way, and ten more
    last = worker.step
    time.sleep(0.05)
    assert worker.step == last
    speak([worker])
    wait_until(lambda: worker.step > last + 20, "steps")
    assert worker.output.splitlines() == ["in world 1"]


def test_what_the_agent_says_ends_the_wait(agent: FakeAgent) -> None:
    worker = agent.start(COUNTS)
    agent.form([worker])
    wait_until(lambda: worker.step > 20, "steps")
    silence([worker], leave_in_s=LONG_S)
    agent.pause([worker], WorldChangeEvent.SCALE_DOWN)
    wait_until(lambda: "left 1 after" in worker.output, "it leaves")
    agent.form([worker])
    time.sleep(0.05)
    assert "in world 2" not in worker.output, "it has no leave to work there yet"
    speak([worker])
    worker.says("in world 2")


def test_it_leaves_its_world_and_asks_for_another(agent: FakeAgent) -> None:
    worker = agent.start(COUNTS)
    agent.form([worker])
    wait_until(lambda: worker.step > 20, "steps")
    silence([worker])
    wait_until(lambda: "nothing heard from this worker's agent: leaving world 1" in worker.output, "it leaves")
    assert "left" not in worker.output, "nobody has told it what comes then"
    speak([worker])
    wait_until(lambda: "left 1 after" in worker.output, "it leaves")
    wait_until(lambda: (status := worker.writer.read_status()) and status.broken_round == 1, "it asks")
    agent.form([worker])
    worker.says("in world 2")


def test_it_says_that_it_has_left_before_it_may_work_in_the_next_world(agent: FakeAgent) -> None:
    """The agent was left behind and taken in again at once: it gives no time until its workers have left."""
    worker = agent.start(COUNTS)
    agent.form([worker])
    wait_until(lambda: worker.step > 20, "steps")
    silence_until_it_leaves(worker)
    agent.pause([worker], WorldChangeEvent.SCALE_DOWN)
    agent.form([worker])
    wait_until(lambda: (status := worker.writer.read_status()) and status.applied == 3, "it says so")
    assert "in world 2" not in worker.output
    speak([worker])
    worker.says("in world 2")


def test_it_gets_out_of_the_group_that_it_sits_in(agent: FakeAgent) -> None:
    workers = [agent.start(SUMS), agent.start(SUMS)]
    agent.form(workers)
    for worker in workers:
        worker.says("sums in world 1")
    silence(workers)
    for worker in workers:
        wait_until(lambda worker=worker: "leaving world 1" in worker.output, "it leaves")  # type: ignore[misc]
    speak(workers)
    for worker in workers:
        wait_until(lambda worker=worker: worker.writer.read_status().broken_round == 1, "it asks")  # type: ignore[misc]
    agent.form(workers)
    for worker in workers:
        worker.says("sums in world 2")


@pytest.mark.slow
def test_a_wrapped_function_is_interrupted(agent: FakeAgent) -> None:
    worker = agent.start(WRAPPED)
    agent.form([worker])
    worker.says("trains in world 1")
    silence_until_it_leaves(worker)
    speak([worker])
    wait_until(lambda: (status := worker.writer.read_status()) and status.broken_round == 1, "it asks")
    agent.form([worker])
    worker.says("trains in world 2")
    assert worker.ends() == 0


def test_who_looks_at_the_event_waits_and_is_paused(agent: FakeAgent) -> None:
    worker = agent.start(ASKS)
    agent.form([worker])
    worker.says("asks")
    silence_until_it_leaves(worker)
    assert "paused" not in worker.output
    speak([worker])
    worker.says("paused")
    worker.says("goes on in 1")
    assert worker.ends() == 0, "it has used no group, so its world is as good as before"


def test_who_polls_the_event_for_another_world_gets_one(agent: FakeAgent) -> None:
    """Its agent was only late, so nobody else would make one."""
    worker = agent.start(POLLS)
    agent.form([worker])
    worker.says("polls in 1")
    silence_until_it_leaves(worker)
    speak([worker])
    wait_until(lambda: (status := worker.writer.read_status()) and status.broken_round == 1, "it asks")
    agent.form([worker])
    worker.says("goes on in 2")
    assert worker.ends() == 0


def test_it_waits_in_the_last_steps_of_a_world_too(agent: FakeAgent) -> None:
    """The next world is agreed on, and begins after a step that this worker has not come to yet."""
    worker = agent.start(COUNTS)
    agent.form([worker])
    wait_until(lambda: worker.step > 20, "steps")
    silence([worker], leave_in_s=LONG_S)
    time.sleep(0.05)
    last = worker.step
    agent.form([worker], leave_after=last + 1000)
    time.sleep(0.05)
    assert worker.step == last
    speak([worker])
    worker.says("in world 2")
