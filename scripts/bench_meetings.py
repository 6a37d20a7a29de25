"""What ranks need to meet in the wrapper: for a barrier, and for a rank assignment of each kind.

All ranks are processes of this machine and start each turn together; told is how long the slowest of them takes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch.distributed as dist

from softrun.runtime.events import WorkerInfo
from softrun.runtime.inprocess import Compose, FilterCountGroupedByKey, Layer, ShiftRanks, State, Tree
from softrun.runtime.inprocess.calls.seating import Assignment, take_seat
from softrun.runtime.inprocess.calls.world_store import WorldStore

Meeting = Callable[[WorldStore, WorkerInfo, str], object]


def barrier(store: WorldStore, info: WorkerInfo, name: str) -> object:
    return store.barrier(name, info.world_size)


def by(assignment: Assignment) -> Meeting:
    def seat(store: WorldStore, info: WorkerInfo, name: str) -> object:
        return take_seat(assignment, store, name, info, None, State(info.rank, info.world_size))

    return seat


def by_node(state: State) -> str:
    return f"node {(state.rank or 0) // 8}"


MEETINGS: dict[str, Meeting] = {
    "barrier": barrier,
    "a function of the table": by(lambda seats: seats),
    "ShiftRanks": by(ShiftRanks()),
    "ShiftRanks, FilterCountGroupedByKey": by(Compose(ShiftRanks(), FilterCountGroupedByKey(by_node, bool))),
    "Tree of two layers": by(Tree([Layer(), Layer(key_or_fn=by_node)])),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--turns", type=int, default=20)
    args = parser.parse_args()
    print(f"ms, median of {args.turns} turns")
    for size in args.ranks:
        for name, times in timed(size, args.turns).items():
            print(f"{size:4} ranks  {name:36} {statistics.median(times) * 1000:6.1f}", flush=True)
    return 0


def timed(size: int, turns: int) -> dict[str, list[float]]:
    """Seconds of the slowest rank in each turn, by meeting."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", __name__])
    pipes, ranks = [], []
    for rank in range(size):
        here, there = context.Pipe()
        pipes.append(here)
        ranks.append(context.Process(target=meet, args=(rank, size, store.port, turns, there), daemon=True))
        ranks[-1].start()
    found: dict[str, list[float]] = {}
    for name in MEETINGS:
        for _ in range(turns):
            for pipe in pipes:
                pipe.recv()
            for pipe in pipes:
                pipe.send(name)
            found.setdefault(name, []).append(max(pipe.recv() for pipe in pipes))
    for process in ranks:
        process.join()
    return found


def meet(rank: int, size: int, port: int, turns: int, pipe: Connection) -> None:
    info = WorkerInfo.model_construct(
        rank=rank, world_size=size, local_rank=rank % 8, group_rank=rank // 8, master_addr="127.0.0.1", master_port=port
    )
    store = WorldStore(info)
    for turn in range(turns * len(MEETINGS)):
        pipe.send("ready")
        name = pipe.recv()
        began = time.perf_counter()
        MEETINGS[name](store, info, f"{turn}")
        pipe.send(time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(main())
