"""Getting out of a gloo group: always, at once, and without harm to anything else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import Empty, SimpleQueue

import pytest
import torch.distributed as dist

from fake_agent import FakeAgent, Worker, an_info, wait_until
from local_cluster import free_port
from softrun.runtime import groups, noted
from softrun.runtime.events import WorldChangeEvent

# Small collectives one after the other: nearly always in the middle of one, where gloo can lose a payload for good.
BUSY_WORLDS = """
import os, torch, torch.distributed as dist
from softrun.runtime import worlds
torch.set_num_threads(1)
for world in worlds():
    with world.process_group("gloo"):
        print("round", world.round, len(os.listdir("/proc/self/fd")))
        while True:
            dist.all_reduce(torch.ones(1))
            world.check()
"""

BUSY_RFC_LOOP = """
import os, torch, torch.distributed as dist
from softrun.runtime import get_worker_event, get_worker_info
torch.set_num_threads(1)
while True:
    info = get_worker_info()
    try:
        dist.init_process_group("gloo", **info.get_pg_parameters())
        print("round", get_worker_event().round, len(os.listdir("/proc/self/fd")))
        while True:
            dist.all_reduce(torch.ones(1))
    except RuntimeError:
        dist.destroy_process_group()
"""


def have_entered(workers: list[Worker], round_: int) -> bool:
    return all(f"round {round_} " in worker.output for worker in workers)


@pytest.mark.processes
@pytest.mark.parametrize("trainer", [BUSY_WORLDS, BUSY_RFC_LOOP], ids=["worlds", "the RFC's loop"])
def test_a_hundred_worlds_each_left_in_the_middle_of_a_collective(agent: FakeAgent, trainer: str) -> None:
    workers = [agent.start(trainer, RES_OPTIONS="timeout:1 attempts:1") for _ in range(3)]
    agent.form(workers)
    for round_ in range(1, 101):
        wait_until(partial(have_entered, workers, round_), f"round {round_}")
        agent.pause(workers, WorldChangeEvent.SCALE_DOWN)
        agent.form(workers, WorldChangeEvent.SCALE_DOWN)
    for worker in workers:
        descriptors = [int(line.split()[2]) for line in worker.output.splitlines() if line.startswith("round ")]
        assert max(descriptors[50:]) <= max(descriptors[:50]) + 2, "descriptors leak"


@pytest.fixture
def over() -> Iterator[Callable[[], None]]:
    """Ends the world, for the test."""
    yield noted.end_world
    noted.begin_world()


def test_a_store_that_is_gone_holds_nobody(over: Callable[[], None]) -> None:
    """The world changed, or its host died, just before this worker would have connected."""
    outcome = SimpleQueue[BaseException]()

    def build() -> None:
        try:
            groups.build_group(an_info(0, 2, free_port()), "gloo", None)
        except RuntimeError as error:
            outcome.put(error)

    builder = threading.Thread(target=build, daemon=True)
    builder.start()
    with pytest.raises(Empty):
        outcome.get(timeout=0.2)  # it waits for a store that may be about to begin
    over()
    assert groups.is_lost_peer(error := outcome.get(timeout=20)), error


def test_no_group_is_built_in_a_world_that_is_over(over: Callable[[], None]) -> None:
    """Its building may have been about to begin when the abort came: nobody would end it any more."""
    noted.note_groups()
    over()
    with pytest.raises(RuntimeError, match="the world has changed"):
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=2)
    assert not dist.is_initialized()
