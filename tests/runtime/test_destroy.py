"""The groups of a world that is over are destroyed aside: at the next one's end, after a while, or with the process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist
from gloo_ranks import Me, run

from fake_agent import wait_until
from local_cluster import PATIENCE_S, free_port
from softrun.runtime.groups import destroy, native
from softrun.runtime.groups.groups import leave_groups

pytestmark = pytest.mark.processes

GROUPS = 8


def build(store: dist.Store | None = None) -> None:
    dist.init_process_group("gloo", store=store or dist.HashStore(), rank=0, world_size=1)
    for _ in range(GROUPS - 1):
        dist.new_group()


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def until_there_are(count: int) -> None:
    wait_until(lambda: threads() == count, f"{count} threads")


def leave_in_less_time(_me: Me) -> None:
    """The least of some tries: on a busy machine any of them may take long."""
    leaving, destroying = [], []
    for _ in range(5):
        build()
        began = time.monotonic()
        leave_groups(in_trouble=True)
        leaving.append(time.monotonic() - began)
        build()
        began = time.monotonic()
        dist.destroy_process_group()
        destroying.append(time.monotonic() - began)
    assert min(leaving) < min(destroying) / 2, (leaving, destroying)


def keep_one_world(_me: Me) -> None:
    before = threads()
    build()
    of_a_world = threads() - before
    leave_groups(in_trouble=True)
    assert threads() > before + of_a_world  # and the one that keeps them
    build()
    leave_groups(in_trouble=True)
    until_there_are(before + of_a_world + 1)


def keep_those_of_the_trainer(_me: Me) -> None:
    build()
    groups = [dist.new_group() for _ in range(GROUPS)]
    leave_groups(in_trouble=True)
    kept = threads()
    groups.clear()
    assert threads() == kept


def keep_none_for_long(_me: Me) -> None:
    destroy.KEEP_S = 0.05
    before = threads()
    build()
    leave_groups(in_trouble=True)
    until_there_are(before)


def free_the_port(_me: Me) -> None:
    port = free_port()
    for _ in range(3):
        build(dist.TCPStore("127.0.0.1", port, 1, is_master=True))
        leave_groups(in_trouble=True)


def fork(_me: Me) -> None:
    build()
    leave_groups(in_trouble=True)
    child = os.fork()
    if child == 0:
        build()
        leave_groups(in_trouble=True)
        native._await_all()
        os._exit(len(destroy._kept_by_parents) != 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "body",
    [leave_in_less_time, keep_one_world, keep_those_of_the_trainer, keep_none_for_long, free_the_port, fork],
    ids=lambda body: body.__name__,
)
def test_groups_that_were_left(body: Callable[[Me], None]) -> None:
    assert run(body) == [None]


ENDS = """
import torch.distributed as dist
from softrun.runtime.groups.groups import leave_groups
for _ in range(4):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    leave_groups(in_trouble=True)
"""


@pytest.mark.slow
def test_a_process_ends_in_order_and_does_not_wait_for_them_for_long() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS], timeout=PATIENCE_S, check=True, stderr=subprocess.PIPE)
    assert not ended.stderr
