"""Peers that are added interrupt no step, and yet nobody waits for one who has left for their sake: the RFC's own loop.

softrun.runtime.worlds has the same promise; its tests are in test_worlds.py.
"""

from __future__ import annotations

import pytest

from fake_agent import FakeAgent
from softrun.runtime.events import WorldChangeEvent

pytestmark = pytest.mark.processes

RFC_LOOP = """
import time
import torch, torch.distributed as dist
from softrun.runtime import get_worker_event, get_worker_info

torch.set_num_threads(1)

def world():
    get_worker_info()
    return get_worker_event()

def left(world):
    while get_worker_event() == world:
        time.sleep(0.005)
    if dist.is_initialized():
        dist.destroy_process_group()
    get_worker_info()
"""


def test_nobody_goes_on_building_a_group_of_a_world_past(agent: FakeAgent) -> None:
    builds = agent.start(
        RFC_LOOP
        + """
world()
print("builds")
try:
    dist.init_process_group("gloo")
except RuntimeError:
    print("raised")
print("next", get_worker_info().world_size)
"""
    )
    has_left = agent.start(RFC_LOOP + "left(world())")
    members = [builds, has_left]
    agent.form(members)
    builds.says("builds")
    agent.pause(members, WorldChangeEvent.SCALE_UP)
    builds.says("raised")
    agent.form([*members, agent.start("pass")], WorldChangeEvent.SCALE_UP)
    builds.says("next 3")


def test_a_step_goes_on_until_a_peer_has_left_and_then_ends(agent: FakeAgent) -> None:
    steps = agent.start(
        RFC_LOOP
        + """
world()
dist.init_process_group("gloo")
print("built")
try:
    dist.all_reduce(torch.ones(1))
    print("went on")
    dist.all_reduce(torch.ones(1))
except RuntimeError:
    print("raised")
"""
    )
    leaves = agent.start(
        RFC_LOOP
        + """
import sys
event = world()
dist.init_process_group("gloo")
print("built")
while get_worker_event() == event:
    time.sleep(0.005)
dist.all_reduce(torch.ones(1))
print("in step")
left(event)
"""
    )
    members = [steps, leaves]
    agent.form(members)
    for member in members:
        member.says("built")
    agent.pause(members, WorldChangeEvent.SCALE_UP)
    leaves.says("in step")
    steps.says("went on")
    steps.says("raised")
