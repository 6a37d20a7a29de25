"""Getting out of collectives of every kind of group, where a real gloo rank is stopped; what else an abort does."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import Me, Sit, ranks, run
from torch.distributed.device_mesh import init_device_mesh

from local_cluster import PATIENCE_S, free_port
from softrun.runtime.groups import group_registry
from softrun.runtime.groups.abort import abort_all, abort_groups, add_abort, track_groups
from softrun.runtime.groups.groups import leave_groups

STOPPED = 3  # of four


def in_the_default_group(me: Me) -> Sit:
    me.build()
    return lambda: dist.all_reduce(torch.ones(1))


def in_a_group_of_the_user(me: Me) -> Sit:
    """Built before anything was noted, as it is before softrun is imported."""
    me.build()
    dist.new_group([0, 1, 2])
    track_groups()
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


def where_descriptors_are_few(me: Me) -> Sit:
    me.build()
    dist.barrier()  # a rank that leaves the group does not wait for those that still build it
    leave_groups(in_trouble=False)
    counts = [0]
    # Until those of the group that it has left are closed.
    while (len(set(counts[-3:])) > 1 or len(counts) < 3) and len(counts) < 200:
        time.sleep(0.05)
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    resource.setrlimit(resource.RLIMIT_NOFILE, (counts[-1] + 12,) * 2)
    me.build("again")
    assert not any(group.connections.held for group in group_registry._noted if group.connections is not None)
    return lambda: dist.all_reduce(torch.ones(1))


def under_debug(me: Me) -> Sit:
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    me.build()
    return lambda: dist.all_reduce(torch.ones(1))


def get_stuck(prepare: Callable[[Me], Sit], me: Me, *, note: bool, rehearse: bool) -> None:
    if note:
        track_groups()
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
        me.say(time.monotonic() - me.aborted_at if me.aborted_at else None)
    else:
        raise AssertionError("nobody was missed")
    watcher.join(PATIENCE_S)
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
        where_descriptors_are_few,
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
        # Where no duplicates are held it is noticed when peers leave, maybe before the word is heard.
        if prepare in (in_a_group_that_connects_lazily, where_descriptors_are_few):
            freed_s = [seconds or 0.0 for seconds in freed_s]
        print(prepare.__name__, "freed after", " ".join(f"{1000 * seconds:.1f} ms" for seconds in freed_s))
        assert max(freed_s) < 5
        assert [rank.says() for rank in others] == [STOPPED] * STOPPED
        for rank in others:
            rank.ends()


BEFORE_SOFTRUN = """
import sys, threading, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
group = dist.new_group([0, 1])
dist.all_reduce(torch.ones(1), group=group)
if sys.argv[2] == "1":
    print("sleeps", flush=True)
    threading.Event().wait(600)
assert "softrun" not in sys.modules
from softrun.runtime.groups.abort import abort_all
threading.Timer(0.2, abort_all).start()
try:
    dist.all_reduce(torch.ones(1), group=group)
except RuntimeError:
    print("freed")
del group
dist.destroy_process_group()  # else it is torch that may have the process aborted when it ends
"""


@pytest.mark.slow
@pytest.mark.processes
def test_groups_that_were_built_before_softrun_was_imported(tmp_path: Path) -> None:
    port = str(free_port())
    command = [sys.executable, "-c", BEFORE_SOFTRUN, port]
    # Rank 1 hosts nothing: the store is rank 0's and still answers when it is asked.
    sleeper = subprocess.Popen([*command, "1"], stdout=subprocess.DEVNULL)
    try:
        freed = subprocess.run([*command, "0"], stdout=subprocess.PIPE, timeout=PATIENCE_S, text=True, check=True)
    finally:
        sleeper.kill()
        sleeper.wait(PATIENCE_S)
    assert freed.stdout == "freed\n"


def leave_and_stay(me: Me) -> None:
    track_groups()
    me.build()
    pair = dist.new_group([2, 3])
    dist.barrier()
    me.say("ready")
    if me.rank == 0:
        me.hear()
        leave_groups(in_trouble=True)
    elif me.rank == 1:
        watcher = me.abort_when_told()
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(1_000_000))
        assert me.aborted_at, "it was freed although nobody had told it"
        watcher.join(PATIENCE_S)
    else:
        me.hear()
        sent = dist.isend(torch.ones(1_000_000), dst=0)  # nobody takes it
        for _ in range(200):
            dist.all_reduce(torch.ones(1000), group=pair)
        assert sent is not None
        assert not sent.is_completed()
    me.say("done")
    me.hear()


@pytest.mark.processes
def test_a_rank_that_is_not_stuck_is_not_harmed() -> None:
    with ranks(leave_and_stay, 4) as (leaves, sits, goes_on, goes_on_too):
        for rank in (leaves, sits, goes_on, goes_on_too):
            assert rank.says() == "ready"
        sits.sits()
        leaves.tell("leave")
        assert leaves.says() == "done"
        for rank in (goes_on, goes_on_too):
            rank.tell("go on")
        for rank in (goes_on, goes_on_too):
            assert rank.says() == "done"
        assert sits.says_nothing(0.3)
        sits.tell("abort")
        assert sits.says() == "done"


def fork_with_a_group(me: Me) -> None:
    track_groups()
    me.build()
    dist.all_reduce(torch.ones(1))
    child = os.fork()
    if child == 0:
        abort_all()
        held = [group for group in group_registry._noted if group.connections is not None and group.connections.held]
        os._exit(len(abort_groups()) + len(group_registry.registered_groups()) + len(held))
    assert os.waitpid(child, 0)[1] == 0
    for _ in range(20):
        dist.all_reduce(torch.ones(1))
    dist.barrier()


@pytest.mark.processes
def test_a_forked_child_does_not_cut_the_groups_of_its_parent() -> None:
    run(fork_with_a_group, 2)


def test_what_a_user_added_is_called_last_first_and_failures_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    called: list[tuple[str, Any]] = []

    def fails(state: Any) -> None:
        called.append(("fails", state))
        raise LookupError("a bug of the user")

    def works(state: Any) -> None:
        called.append(("works", state))

    removals = [add_abort(works), add_abort(fails), add_abort(works)]
    with caplog.at_level(logging.ERROR, "softrun.runtime"):
        abort_all("state")
    assert called == [("works", "state"), ("fails", "state"), ("works", "state")]
    assert "a bug of the user" in caplog.text
    assert "Traceback" in caplog.text
    for remove in removals:
        remove()
        remove()
    abort_all()
    assert len(called) == 3


def test_nothing_is_imported() -> None:
    code = "import sys; from softrun.runtime.groups import abort, groups; abort.track_groups(); abort.abort_all()\n"
    code += "groups.leave_groups(in_trouble=True); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
