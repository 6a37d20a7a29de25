"""Getting out of collectives of every kind of group, with real gloo ranks of which one is stopped."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import Me, ranks
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh

from fake_agent import DEADLINE_S
from local_cluster import free_port
from softrun.runtime.abort import note_groups
from softrun.runtime.groups import leave_groups

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
        me.say(time.monotonic() - me.aborted_at if me.aborted_at else None)
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
        if prepare is in_a_group_that_connects_lazily:  # there it is noticed when peers leave
            freed_s = [seconds or 0.0 for seconds in freed_s]
        print(prepare.__name__, "freed after", " ".join(f"{1000 * seconds:.1f} ms" for seconds in freed_s))
        assert max(freed_s) < 5
        assert [rank.says() for rank in others] == [STOPPED] * STOPPED
        for rank in others:
            rank.ends()


@contextlib.contextmanager
def bystander() -> Iterator[None]:
    """Connections of this process's own: one from before, and others that a thread opens all the time."""
    ended = threading.Event()
    broken: list[BaseException] = []

    def open_and_use(listener: socket.socket) -> None:
        opened: list[socket.socket] = []
        try:
            while not ended.wait(0.002) and len(opened) < 200:
                ours = socket.create_connection(listener.getsockname(), timeout=DEADLINE_S)
                theirs, _ = listener.accept()
                opened += [ours, theirs]
            for ours, theirs in zip(opened[::2], opened[1::2], strict=True):
                use(ours, theirs)
        except BaseException as error:
            broken.append(error)
        finally:
            for one in opened:
                one.close()

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        theirs, _ = listener.accept()
        local = socket.socketpair()
        thread = threading.Thread(target=open_and_use, args=(listener,), daemon=True)
        thread.start()
        with theirs, local[0], local[1]:
            yield
            ended.set()
            thread.join(DEADLINE_S)
            use(ours, theirs)
            use(*local)
    assert not broken, broken


def use(ours: socket.socket, theirs: socket.socket) -> None:
    for one, other in ((ours, theirs), (theirs, ours)):
        other.settimeout(DEADLINE_S)
        one.sendall(b"x")
        assert other.recv(1) == b"x"


def a_peer_that_never_comes(me: Me) -> Sit:
    return lambda: me.build(size=2)


def a_peer_that_never_calls(me: Me) -> Sit:
    """It was stopped after it had published its address."""
    publish(me, "127.0.0.1", free_port())
    return lambda: me.build(size=2)


def a_peer_that_does_not_answer(me: Me) -> Sit:
    """Its host is gone after it had published its address: connecting goes on and on."""
    listener = socket.create_server(("127.0.0.2", 0), backlog=0)
    while True:
        waiting = socket.socket()
        waiting.settimeout(0.2)
        kept_open.append(waiting)
        try:
            waiting.connect(listener.getsockname())
        except TimeoutError:
            break
    kept_open.append(listener)
    publish(me, *listener.getsockname())
    return lambda: me.build(size=2)


def a_store_that_waits_for_peers(me: Me) -> Sit:
    method = f"tcp://127.0.0.1:{free_port()}"
    return lambda: dist.init_process_group("gloo", init_method=method, rank=0, world_size=2)


def a_sub_group_that_a_peer_never_builds(me: Me) -> Sit:
    build_with_a_sleeper(me)
    return lambda: dist.new_group([0, 1])


def a_split_that_a_peer_never_makes(me: Me) -> Sit:
    build_with_a_sleeper(me)
    group = distributed_c10d._get_default_group()
    return lambda: group.split_group([0, 1], group_name="split", group_desc="split")


kept_open: list[socket.socket] = []


def publish(me: Me, host: str, port: int) -> None:
    """What rank 1 of two would, as gloo reads it."""
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host)
    record = struct.pack("=Q4sQ136s2q", 4, b"host", 136, address, 0, 1)
    me.store("first").set("0//cpu//0/1", record)


def build_with_a_sleeper(me: Me) -> None:
    """The other rank is a fork of this one, which sleeps when the default group is built."""
    if os.fork() == 0:
        me.build(rank=1, size=2)
        time.sleep(2 * DEADLINE_S)
        os._exit(0)
    me.build(rank=0, size=2)


def build_in_vain(prepare: Callable[[Me], Sit], me: Me) -> None:
    note_groups()
    with bystander():
        sit = prepare(me)
        watcher = me.abort_when_told()
        me.say("ready")
        with pytest.raises(RuntimeError):
            sit()
        me.say(time.monotonic() - me.aborted_at)
        watcher.join(DEADLINE_S)
        leave_groups(in_trouble=True)
        me.build("second", size=1)
        dist.all_reduce(torch.ones(1))
    me.say("used")


@pytest.mark.processes
@pytest.mark.parametrize(
    "prepare",
    [
        a_peer_that_never_comes,
        a_peer_that_never_calls,
        a_peer_that_does_not_answer,
        a_store_that_waits_for_peers,
        a_sub_group_that_a_peer_never_builds,
        a_split_that_a_peer_never_makes,
    ],
)
def test_whoever_builds_a_group_is_freed_and_no_bystander_is_harmed(prepare: Callable[[Me], Sit]) -> None:
    with ranks(lambda me: build_in_vain(prepare, me), size=1) as (rank,):
        assert rank.says() == "ready"
        rank.sits()
        assert rank.says_nothing(0.1)
        rank.tell("abort")
        freed_s = rank.says()
        print(prepare.__name__, f"freed after {1000 * freed_s:.1f} ms")
        assert freed_s < 5
        assert rank.says() == "used"
        rank.ends()
