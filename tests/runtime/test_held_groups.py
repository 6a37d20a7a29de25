"""Groups that are held although they were destroyed: for models that are freed later, and until the process ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import Me, run
from torch.nn.parallel import DistributedDataParallel

from local_cluster import PATIENCE_S
from softrun.runtime.groups import gloo_waits
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
