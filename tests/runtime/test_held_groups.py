"""Groups that are held although they were destroyed: for models that are freed later, and until the process ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import Me, ranks, run
from torch.nn.parallel import DistributedDataParallel

from fake_agent import wait_until
from local_cluster import PATIENCE_S
from softrun.runtime.groups import gloo_waits, held_groups
from softrun.runtime.groups.destroy import destroy_aside
from softrun.runtime.groups.group_registry import track_groups
from softrun.runtime.groups.held_groups import let_go

TIMES = 100

DROPS_LATE = """
import os, sys, threading, time
import torch
import torch.distributed as dist
from softrun.runtime.groups.group_registry import track_groups

is_peer = os.fork() == 0
track_groups()
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("gloo", store=store, rank=int(is_peer), world_size=2)
if is_peer:
    store.wait(["left to gloo"])
    dist.all_reduce(torch.ones(1))
    os._exit(0)


class Slow:
    def __del__(self, sleep=time.sleep):
        dropping_by.append(threading.get_native_id())
        dropping.set()
        sleep(0.5)


class WhileTheInterpreterEnds:
    def __del__(self, sleep=time.sleep):
        sleep(1)


dropping, dropping_by = threading.Event(), []
tensor = torch.ones(1)
tensor.slow = Slow()
dist.all_reduce(tensor, async_op=True)
del tensor
store.set("left to gloo", b"")
dropping.wait()
assert dropping_by != [threading.get_native_id()]
os.wait()
if sys.argv[2] == "destroyed":
    dist.destroy_process_group()
sys.modules["late"] = WhileTheInterpreterEnds()
"""


def train(me: Me, store: dist.Store) -> None:
    dist.init_process_group("gloo", store=store, rank=me.rank, world_size=me.size)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    for _ in range(4):
        model(torch.ones(4, 8)).sum().backward()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("way", ["destroyed", "left as it is"])
def test_a_process_ends_after_gloo_has_dropped_its_last_tensor(way: str, tmp_path: Path) -> None:
    """torch's thread would be the end of the process if it came for the interpreter's lock too late."""
    ended = subprocess.run(
        [sys.executable, "-c", DROPS_LATE, str(tmp_path / "store"), way],
        stderr=subprocess.PIPE,
        timeout=PATIENCE_S,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_a_model_is_not_the_last_to_hold_its_group() -> None:
    def work(me: Me) -> str:
        track_groups()
        store = me.store("all")
        for turn in range(TIMES):
            train(me, dist.PrefixStore(str(turn), store))
        let_go()
        return "through"

    assert run(work, 3) == ["through"] * 3


@pytest.mark.parametrize("of", ["the default group", "another group"])
def test_a_model_is_freed_although_its_group_still_waits_for_a_peer(of: str) -> None:
    """As for the fraction of a second in which nobody has told gloo that a payload will not come."""

    def leave() -> None:
        destroy_aside()
        dist.destroy_process_group()

    def body(me: Me) -> None:
        track_groups()
        if me.rank < 2:
            me.build("first", size=2)
            group = dist.new_group() if of == "another group" else None
            model = DistributedDataParallel(torch.nn.Linear(8, 8), process_group=group)
            me.say("built")
            me.hear()
            work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
            del group
            leave()
        for name in ("second", "third", "fourth"):
            me.build(name, rank=me.rank // 2, size=2)
            dist.barrier()
            leave()
        if me.rank == 0:
            assert not work.is_completed()
            del model
            me.say("freed")

    with ranks(body, 3) as (one, stopped, _):
        assert [one.says(), stopped.says()] == ["built", "built"]
        stopped.stop()
        wait_until(stopped.is_stopped, "a stopped rank")
        one.tell()
        assert one.says() == "freed"


def test_a_group_in_which_nothing_works_is_not_held_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo's loop may take a whole core until it is freed."""
    monkeypatch.setattr(held_groups, "KEPT_S", 0.0)

    def work(me: Me) -> str:
        track_groups()
        for name in ("first", "second"):
            me.build(name)
            dist.barrier()
            if name == "first":
                first = gloo_waits.run_loops()
                dist.destroy_process_group()
        wait_until(lambda: not first & gloo_waits.run_loops(), "the first group to be freed")
        return "through"

    assert run(work, 2) == ["through"] * 2


@pytest.mark.parametrize("told", ["", "what no kernel says"])
def test_a_kernel_that_does_not_tell_what_threads_wait_for_costs_no_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: str
) -> None:
    thread = tmp_path / "1"
    thread.mkdir()
    (thread / "comm").write_text("pt_gloo_runloop\n")
    (thread / "syscall").write_text("running\n")
    monkeypatch.setattr(gloo_waits, "_THREADS", tmp_path)
    assert gloo_waits.working() == {1}
    (thread / "syscall").write_text(told)
    assert gloo_waits.working() == set()
