"""Getting out of a gloo group: always, at once, and without harm to anything else."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue

import pytest
import torch.distributed as dist

from fake_agent import FakeAgent, Worker, an_info, wait_until
from local_cluster import free_port
from softrun.runtime.events import WorldChangeEvent
from softrun.runtime.groups import group_registry, groups

# Small collectives one after the other: nearly always in the middle of one, where gloo can lose a payload for good.
SAY = """
import os
import torch, torch.distributed as dist
import statistics
torch.set_num_threads(1)

def say(round_):
    held = (len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task"))
    pages = int(open("/proc/self/statm").read().split()[1])
    print("round", round_, *held, pages * os.sysconf("SC_PAGESIZE") // 2**20, flush=True)
"""

BUSY_WORLDS = (
    SAY
    + """
from softrun.runtime import worlds
for world in worlds():
    with world.process_group("gloo"):
        say(world.round)
        while True:
            dist.all_reduce(torch.ones(1))
            world.check()
"""
)

BUSY_RFC_LOOP = (
    SAY
    + """
from softrun.runtime import get_worker_event, get_worker_info
while True:
    info = get_worker_info()
    try:
        dist.init_process_group("gloo", **info.get_pg_parameters())
        say(get_worker_event().round)
        while True:
            dist.all_reduce(torch.ones(1))
    except Exception:
        dist.destroy_process_group()
"""
)


def have_entered(workers: list[Worker], round_: int) -> bool:
    return all(f"round {round_} " in worker.output for worker in workers)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("trainer", [BUSY_WORLDS, BUSY_RFC_LOOP], ids=["worlds", "the RFC's loop"])
def test_two_hundred_worlds_each_left_in_the_middle_of_a_collective_leak_nothing(
    agent: FakeAgent, trainer: str
) -> None:
    workers = [agent.start(trainer, RES_OPTIONS="timeout:1 attempts:1") for _ in range(3)]
    agent.form(workers)
    for round_ in range(1, 201):
        wait_until(partial(have_entered, workers, round_), f"round {round_}")
        agent.pause(workers, WorldChangeEvent.SCALE_DOWN)
        agent.form(workers, WorldChangeEvent.SCALE_DOWN)
    for worker in workers:
        said = [line.split()[2:] for line in worker.output.splitlines() if line.startswith("round ")]
        held = [tuple(map(int, numbers)) for numbers in said]
        for what, allowed, of in (("descriptors", 2, 0), ("threads", 4, 1), ("MiB", 16, 2)):
            first, second = ([numbers[of] for numbers in part] for part in (held[20:110], held[110:]))
            # Not the most: those of the last world may not be destroyed yet, for a moment.
            before, after = statistics.median(first), statistics.median(second)
            assert after <= before + allowed, f"{what} leak: {before} at first, then {after}"


@pytest.mark.slow
@pytest.mark.processes
def test_a_rank_that_is_alone_in_its_world_leaves_it(agent: FakeAgent) -> None:
    """Nobody waits for anybody in its group, so there is no connection that could be cut."""
    alone = agent.start(BUSY_RFC_LOOP)
    agent.form([alone])
    wait_until(partial(have_entered, [alone], 1), "round 1")
    agent.pause([alone], WorldChangeEvent.SCALE_DOWN)
    agent.form([alone, agent.start(BUSY_RFC_LOOP)], WorldChangeEvent.SCALE_UP)
    wait_until(partial(have_entered, [alone], 2), "round 2")


@pytest.fixture
def over() -> Iterator[Callable[[], None]]:
    """Ends the world, for the test."""
    yield group_registry.end_world
    group_registry.begin_world()


@pytest.mark.parametrize("way", ["env", "parameters"])
def test_a_store_that_is_gone_holds_nobody(over: Callable[[], None], monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The world changed, or its host died, just before this worker would have connected."""
    outcome = SimpleQueue[BaseException]()
    port = free_port()
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in (variables | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).items():
        monkeypatch.setenv(name, value)

    def build() -> None:
        try:
            if way == "env":
                group_registry.track_groups()
                dist.init_process_group("gloo")
            else:
                groups.build_group(an_info(0, 2, port), groups.GroupOptions("gloo"), 0)
        except RuntimeError as error:
            outcome.put(error)

    builder = threading.Thread(target=build, daemon=True)
    builder.start()
    with pytest.raises(Empty):
        outcome.get(timeout=0.2)  # it waits for a store that may be about to begin
    over()
    assert groups.is_lost_peer(error := outcome.get(timeout=20)), error


def test_a_store_that_cannot_be_reached_is_an_error_after_the_groups_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    agents_store = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in agents_store.items():
        monkeypatch.setenv(name, value)
    group_registry.track_groups()
    with pytest.raises(RuntimeError, match="connect"):
        dist.init_process_group("gloo", init_method=url, rank=0, world_size=2, timeout=timedelta(seconds=0.3))


def test_no_group_is_built_in_a_world_that_is_over(over: Callable[[], None]) -> None:
    """Its building may have been about to begin when the abort came: nobody would end it any more."""
    group_registry.track_groups()
    over()
    with pytest.raises(RuntimeError, match="the world has changed"):
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=2)
    assert not dist.is_initialized()
