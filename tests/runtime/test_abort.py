"""Getting out of collectives of every kind of group, with real gloo ranks of which one is stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh

from fake_agent import DEADLINE_S
from gloo_ranks import Me, ranks
from softrun.runtime import noted
from softrun.runtime.abort import (
    AbortTransformerEngine,
    abort_all,
    abort_groups,
    add_abort,
    note_groups,
)
from softrun.runtime.groups import leave_groups
from softrun.runtime.sockets import open_sockets

STOPPED = 3  # of four

Sit = Callable[[], Any]


def in_the_default_group(me: Me) -> Sit:
    me.build()
    return lambda: dist.all_reduce(torch.ones(1))


def in_a_group_of_the_user(me: Me) -> Sit:
    """Built before anything was noted, as it is before softrun is imported."""
    me.build()
    dist.new_group([0, 1, 2])
    note_groups()
    return lambda: dist.barrier()


def in_sub_groups(me: Me) -> Sit:
    """The default group is well: each shares a group of two with the stopped rank."""
    me.build()
    groups = [dist.new_group([rank, STOPPED]) for rank in range(STOPPED)]
    mine = groups if me.rank == STOPPED else [groups[me.rank]]
    return lambda: [dist.all_reduce(torch.ones(1), group=group) for group in mine]


def in_a_mesh(me: Me) -> Sit:
    """Rank 0 shares neither row nor column with the stopped one: it waits for one that waits for it."""
    me.build()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    return lambda: [dist.all_reduce(torch.ones(1), group=mesh.get_group(name)) for name in ("rows", "columns")]


def in_the_wait_for_a_handle(me: Me) -> Sit:
    me.build()

    def sit() -> None:
        handles = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
        for handle in handles:
            assert handle is not None
            handle.wait()

    return sit


def in_ddp(me: Me) -> Sit:
    me.build()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    return lambda: model(torch.ones(2, 8)).sum().backward()


def in_fsdp2(me: Me) -> Sit:
    from torch.distributed.fsdp import fully_shard

    me.build()
    model = torch.nn.Linear(8, 8)
    fully_shard(model, mesh=init_device_mesh("cpu", (me.size,)))
    return lambda: model(torch.ones(2, 8)).sum().backward()


def in_a_group_that_connects_lazily(me: Me) -> Sit:
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
    me.build()
    return lambda: dist.all_reduce(torch.ones(1))


def under_debug(me: Me) -> Sit:
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    me.build()
    return lambda: dist.all_reduce(torch.ones(1))


def in_a_group_that_was_split(me: Me) -> Sit:
    me.build()
    group = distributed_c10d._get_default_group()
    split = group.split_group(list(range(me.size)), group_name="split", group_desc="split")
    assert split is not None
    ranks = {rank: rank for rank in range(me.size)}
    distributed_c10d._register_pg_in_world(split, "gloo", split.get_group_store(), "split", "cpu:gloo", ranks)
    return lambda: dist.all_reduce(torch.ones(1), group=split)


def get_stuck(prepare: Callable[[Me], Sit], me: Me, *, note: bool, rehearse: bool) -> None:
    if note:
        note_groups()
    sit = prepare(me)
    if rehearse:
        sit()
    watcher = me.abort_when_told()
    me.say("ready")
    if me.rank == STOPPED:
        threading.Event().wait()
    try:
        sit()
    except RuntimeError:
        me.say(time.monotonic() - me.aborted_at)
    else:
        raise AssertionError("nobody was missed")
    watcher.join(DEADLINE_S)
    leave_groups(in_trouble=True)
    me.build("second", size=me.size - 1)
    total = torch.ones(1)
    dist.all_reduce(total)
    me.say(total.item())
    leave_groups(in_trouble=False)


@pytest.mark.processes
@pytest.mark.parametrize(
    "prepare",
    [
        in_the_default_group,
        in_a_group_of_the_user,
        in_sub_groups,
        in_a_mesh,
        in_the_wait_for_a_handle,
        in_ddp,
        in_fsdp2,
        in_a_group_that_connects_lazily,
        in_a_group_that_was_split,
        under_debug,
    ],
)
@pytest.mark.parametrize("rehearse", [True, False], ids=["used before", "at once"])
def test_whoever_sits_in_a_collective_is_freed(prepare: Callable[[Me], Sit], rehearse: bool) -> None:
    note = prepare is not in_a_group_of_the_user
    with ranks(lambda me: get_stuck(prepare, me, note=note, rehearse=rehearse), size=STOPPED + 1) as all_of_them:
        for rank in all_of_them:
            assert rank.says() == "ready"
        all_of_them[STOPPED].stop()
        others = all_of_them[:STOPPED]
        for rank in others:
            rank.sits()
        assert all(rank.says_nothing(0.1) for rank in others)
        for rank in others:
            rank.tell("abort")
        freed_s = [rank.says() for rank in others]
        print("freed after", " ".join(f"{1000 * seconds:.1f} ms" for seconds in freed_s))
        assert max(freed_s) < 5
        assert [rank.says() for rank in others] == [STOPPED] * STOPPED
        for rank in others:
            rank.ends()
