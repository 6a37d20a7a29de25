"""Getting out of building a group whose peers do not come, with a real gloo rank."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from bystander import bystander
from gloo_ranks import Me, Sit, ranks, run, store_and_ranks
from torch.distributed import distributed_c10d

from fake_agent import wait_until
from local_cluster import PATIENCE_S, free_port
from softrun.runtime.groups.abort import track_groups
from softrun.runtime.groups.gloo import Published
from softrun.runtime.groups.groups import leave_groups


def a_peer_that_never_comes(me: Me) -> Sit:
    return lambda: me.build(size=2)


def a_peer_that_never_calls(me: Me) -> Sit:
    """It was stopped after it had published its address, which is greater than this rank's: that one waits."""
    publish(me, "127.0.0.2", free_port())
    return lambda: me.build(size=2)


def a_peer_that_calls_and_says_nothing(me: Me) -> Sit:
    """It was stopped, or cut, when it had connected: gloo drops such a caller when that ends, and waits on."""
    publish(me, "127.0.0.2", free_port())
    watched = me.store("first")

    def call() -> None:
        wait_until(lambda: watched.check(["0//cpu//0/0"]), "what gloo publishes")
        kept_open.append(socket.create_connection(Published.parse(watched.get("0//cpu//0/0")).address))

    def sit() -> None:
        threading.Thread(target=call, daemon=True).start()
        me.build(size=2)

    return sit


def a_peer_that_never_calls_while_the_store_is_stopped(me: Me) -> Sit:
    """So this rank cannot learn what it has published itself."""
    reading, writing = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writing, str(store.port).encode())
        time.sleep(2 * PATIENCE_S)
        os._exit(0)
    sleepers.append(keeper)
    there = Me(0, 2, int(os.read(reading, 8)), me.pipe)
    publish(there, "127.0.0.2", free_port())
    watched = there.store("first")

    def stop() -> None:
        wait_until(lambda: watched.check(["0//cpu//0/0"]), "what gloo publishes")
        os.kill(keeper, signal.SIGSTOP)

    def sit() -> None:
        threading.Thread(target=stop, daemon=True).start()
        there.build()

    return sit


def a_peer_that_does_not_answer(me: Me) -> Sit:
    """Its host was lost after it had published its address, which is smaller than this rank's: that one calls."""
    for port in range(0x4000, 0x7F00, 0x100):  # gloo compares the bytes in this machine's order
        with contextlib.suppress(OSError):
            listener = socket.create_server(("127.0.0.1", port), backlog=0)
            break
    kept_open.append(listener)
    with contextlib.suppress(TimeoutError):
        while True:
            waiting = socket.socket()
            kept_open.append(waiting)
            waiting.settimeout(0.2)
            waiting.connect(listener.getsockname())
    publish(me, *listener.getsockname())
    return lambda: me.build(size=2)


def a_peer_that_is_late_for_nccl(me: Me) -> Sit:
    """Nothing could interrupt NCCL, so all ranks meet before it; this torch need not have it for that."""
    return lambda: dist.init_process_group("cpu:gloo,cuda:nccl", store=me.store("first"), rank=0, world_size=2)


def a_store_that_waits_for_peers(me: Me) -> Sit:
    method = f"tcp://127.0.0.1:{free_port()}"
    return lambda: dist.init_process_group("gloo", init_method=method, rank=0, world_size=2)


def a_store_of_ones_own_that_waits_for_peers(me: Me) -> Sit:
    port = free_port()
    return lambda: dist.TCPStore("127.0.0.1", port, 2, True)


def a_store_of_ones_own_that_nobody_hosts(me: Me) -> Sit:
    """Rank 0 died before it hosted it."""
    port = free_port()
    return lambda: dist.TCPStore(host_name="127.0.0.1", port=port, world_size=2)


def a_sub_group_that_a_peer_never_builds(me: Me) -> Sit:
    build_with_a_sleeper(me)
    return lambda: dist.new_group([0, 1])


def a_split_that_a_peer_never_makes(me: Me) -> Sit:
    build_with_a_sleeper(me)
    group = distributed_c10d._get_default_group()
    return lambda: group.split_group([0, 1], group_name="split", group_desc="split")


kept_open: list[socket.socket] = []
sleepers: list[int] = []


def publish(me: Me, host: str, port: int) -> None:
    """What rank 1 of two would, as gloo reads it."""
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host)
    record = struct.pack("=Q4sQ136s2q", 4, b"host", 136, address, 0, 1)
    me.store("first").set("0//cpu//0/1", record)


def build_with_a_sleeper(me: Me) -> None:
    """The other rank is a fork of this one, which sleeps when the default group is built."""
    sleeper = os.fork()
    if sleeper == 0:
        me.build(rank=1, size=2)
        time.sleep(2 * PATIENCE_S)
        os._exit(0)
    sleepers.append(sleeper)
    me.build(rank=0, size=2)


def build_in_vain(prepare: Callable[[Me], Sit], me: Me) -> None:
    track_groups()
    with bystander():
        sit = prepare(me)
        watcher = me.abort_when_told()
        me.say("ready")
        try:
            sit()
            dist.barrier()  # where it was built after all, it is of no use
        except RuntimeError:
            pass
        else:
            raise AssertionError("it is of use")
        me.say(time.monotonic() - me.aborted_at)
        watcher.join(PATIENCE_S)
        leave_groups(in_trouble=True)
        me.build("second", size=1)
        dist.all_reduce(torch.ones(1))
    for sleeper in sleepers:
        os.kill(sleeper, signal.SIGKILL)
    me.say("used")


@pytest.mark.processes
@pytest.mark.parametrize(
    "prepare",
    [
        a_peer_that_never_comes,
        a_peer_that_never_calls,
        a_peer_that_calls_and_says_nothing,
        a_peer_that_never_calls_while_the_store_is_stopped,
        a_peer_that_does_not_answer,
        a_peer_that_is_late_for_nccl,
        a_store_that_waits_for_peers,
        a_store_of_ones_own_that_waits_for_peers,
        a_store_of_ones_own_that_nobody_hosts,
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


def build_twice(me: Me) -> list[str]:
    started: list[str] = []
    start = threading.Thread.start

    def noting(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    threading.Thread.start = noting  # type: ignore[method-assign]
    track_groups()
    for name in ("alone", "first", "second"):
        me.build(name, *((0, 1) if name == "alone" else ()))
        dist.all_reduce(torch.ones(1))
        leave_groups(in_trouble=False)
    return started


@pytest.mark.processes
def test_the_exception_that_an_abort_causes_is_rehearsed_once() -> None:
    """The first one of a process takes 20 ms more than the others."""
    for started in run(build_twice, 2):
        assert started.count("softrun-rehearsal") == 1


def build_while_the_store_goes(me: Me) -> None:
    """The store is gone between the last line of torch's building and the first of softrun's noting."""
    build = distributed_c10d._new_process_group_helper

    def building(*args: Any, **options: Any) -> Any:
        result = build(*args, **options)
        me.say("built")
        me.hear()
        return result

    distributed_c10d._new_process_group_helper = building
    track_groups()
    try:
        me.build()
    except dist.DistError:
        me.say("told")
        leave_groups(in_trouble=True)


def test_who_builds_a_group_that_nothing_could_abort_any_more_is_told() -> None:
    with store_and_ranks(build_while_the_store_goes, 2) as (keeper, started):
        for rank in started:
            assert rank.says() == "built"
        keeper.end_by_force()
        for rank in started:
            rank.tell()
            assert rank.says() == "told"
            rank.ends()
