"""Ways to the next gloo group in the same process, timed until its first sum: the slowest rank of each turn.

softrun: left as after a loss and built anew, as `worlds()` does. torch: destroyed and built anew. From torch 2.14 on
also torch's experimental reconfigure: of a group that stays, and of one that is new in each world. A handle names its
group's store, and the store of a world is gone with its node.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from softrun.runtime.groups.group_registry import track_groups
from softrun.runtime.groups.groups import leave_groups

HAS_RECONFIGURE = hasattr(c10d, "_reconfigure")


class Rank:
    """One rank's way through the turns."""

    def __init__(self, rank: int, size: int, store: dist.Store) -> None:
        self.rank, self.size, self.store = rank, size, store

    def meet(self, name: str) -> None:
        self.store.set(f"{name}/{self.rank}", "here")
        self.store.wait([f"{name}/{rank}" for rank in range(self.size)])

    def init(self, name: str, **options: Any) -> None:
        dist.init_process_group(
            "gloo", store=dist.PrefixStore(name, self.store), rank=self.rank, world_size=self.size, **options
        )

    def reconfigure(self, turn: int) -> None:
        self.store.set(f"handle/{turn}/{self.rank}", c10d._get_reconfigure_handle())
        keys = [f"handle/{turn}/{rank}" for rank in range(self.size)]
        self.store.wait(keys)
        c10d._reconfigure(uuid=turn + 1, handles=[self.store.get(key).decode() for key in keys]).wait()

    def softrun(self, turn: int) -> None:
        track_groups()
        leave_groups(in_trouble=True)
        self.init(f"softrun/{turn}")

    def torch(self, turn: int) -> None:
        if turn:
            dist.destroy_process_group()
        self.init(f"torch/{turn}")

    def reconfigured(self, turn: int) -> None:
        if turn == 0:
            self.init("reconfigured", enable_reconfigure=True)
        self.reconfigure(turn)

    def new_and_reconfigured(self, turn: int) -> None:
        if turn:
            dist.destroy_process_group()
        self.init(f"new/{turn}", enable_reconfigure=True)
        self.reconfigure(turn)


WAYS: dict[str, Callable[[Rank, int], None]] = {
    "softrun": Rank.softrun,
    "torch: destroy and init": Rank.torch,
    "torch: reconfigure": Rank.reconfigured,
    "torch: init and reconfigure": Rank.new_and_reconfigured,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--turns", type=int, default=30)
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {args.turns} turns; ms: median of the slowest ranks, without the first turn")
    for size in args.ranks:
        for way in WAYS if HAS_RECONFIGURE else [name for name in WAYS if "reconfigure" not in name]:
            median = statistics.median(slowest_of(way, size, args.turns)[1:])
            print(f"{size:4} ranks  {way:28} {median * 1000:6.1f}", flush=True)


def slowest_of(way: str, size: int, turns: int) -> list[float]:
    """Seconds of each turn."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed"])
    pipes, ranks = [], []
    for rank in range(size):
        here, there = context.Pipe()
        pipes.append(here)
        ranks.append(context.Process(target=take_turns, args=(way, rank, size, store.port, turns, there)))
        ranks[-1].start()
    times = [pipe.recv() for pipe in pipes]
    for process in ranks:
        process.join()
    return [max(of_turn) for of_turn in zip(*times, strict=True)]


def take_turns(way: str, rank: int, size: int, port: int, turns: int, told: Connection) -> None:
    torch.set_num_threads(1)
    me = Rank(rank, size, dist.TCPStore("127.0.0.1", port, is_master=False))
    times = []
    for turn in range(turns):
        me.meet(f"turn/{turn}")
        begun = time.perf_counter()
        WAYS[way](me, turn)
        dist.all_reduce(total := torch.ones(1))
        times.append(time.perf_counter() - begun)
        assert total.item() == size
    dist.destroy_process_group()
    told.send(times)


if __name__ == "__main__":
    main()
