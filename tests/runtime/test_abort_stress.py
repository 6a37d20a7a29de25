"""Groups that are built, aborted and left again and again: nothing hangs, and nothing leaks."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from bystander import bystander
from gloo_ranks import Me, run
from torch.distributed import distributed_c10d

from local_cluster import PATIENCE_S
from softrun.runtime.groups import group_registry
from softrun.runtime.groups.abort import abort_all, track_groups
from softrun.runtime.groups.groups import leave_groups
from softrun.runtime.groups.sockets import open_sockets

BUILT, FAILED = 3, 20
enough = multiprocessing.get_context("fork").Event()


def be_stressed(me: Me) -> tuple[int, int]:
    """Two ranks build, use and leave groups while another thread of each aborts all the time, with some respite."""
    track_groups()
    ended = threading.Event()

    def abort_often() -> None:
        pauses = random.Random(me.rank)
        while not ended.wait(pauses.choices([0.0, 0.001, 0.1, 2.0], [5, 5, 5, 3])[0] * pauses.random()):
            abort_all()

    aborting = threading.Thread(target=abort_often, daemon=True)
    built = failed = 0
    with bystander():
        aborting.start()
        while not enough.is_set():
            try:
                # The other rank may be in another world already: then this one waits until it is aborted.
                me.build(f"world {int(time.monotonic() * 10)}")
                dist.all_reduce(torch.ones(10))
                dist.all_reduce(torch.ones(10), group=dist.new_group([0, 1]))
                built += 1
            except (RuntimeError, ValueError):
                failed += 1
            leave_groups(in_trouble=bool(failed % 2))
            distributed_c10d._world.group_count = 0
            if built >= BUILT and failed >= FAILED:
                enough.set()
        ended.set()
        aborting.join(PATIENCE_S)
    return built, failed


@pytest.mark.slow
@pytest.mark.processes
def test_aborting_all_the_time_while_groups_are_built_used_and_left() -> None:
    counts = run(be_stressed, 2)
    print(counts, "times built and used, and times not")
    assert any(built >= BUILT and failed >= FAILED for built, failed in counts)


REBUILDS = 200


def rebuild(me: Me) -> list[dict[str, int]]:
    track_groups()
    seen = []
    for attempt in range(REBUILDS):
        in_trouble = bool(attempt % 2)
        me.build(f"world {attempt}")
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(10), group=group)
        dist.all_reduce(torch.ones(10))
        leave_groups(in_trouble=in_trouble)
        del group
        if not in_trouble:
            seen.append(figures())
    return seen


def figures() -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "sockets": len(open_sockets()),
        "threads": int(status["Threads"]),
        "noted": len(group_registry._noted) + len(group_registry._left) + len(group_registry._builds),
        "kB": int(status["VmRSS"].split()[0]),
    }


@pytest.mark.slow
@pytest.mark.processes
def test_nothing_leaks_when_groups_are_built_again_and_again() -> None:
    for seen in run(rebuild, 2):
        quarter = len(seen) // 4
        warm, last = seen[quarter], seen[-1]
        print("of", REBUILDS, "groups, after a quarter", warm, "at the end", last)
        for what in ("descriptors", "sockets", "threads", "noted"):
            # The least: on a busy machine some groups wait for the thread that destroys them.
            before, after = (min(figure[what] for figure in part) for part in (seen[quarter:-quarter], seen[-quarter:]))
            assert after <= before + 1, what
        assert last["kB"] - warm["kB"] < 4096
