"""Restarts itself again and again, by an exception on one rank after the other. See scripts/bench_restarts.py.

bench_restarts.py TIMES EVERY: each rank prints what its process holds, as a line of JSON, every EVERY restarts.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from softrun.runtime.inprocess import CallWrapper, FrozenState, Wrapper

MB = 1 << 20
times, every = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)


def held() -> dict[str, float]:
    ctypes.CDLL(None).malloc_trim(0)  # without it, what is free counts as well
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident_mb": pages * os.sysconf("SC_PAGE_SIZE") / MB,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }


@Wrapper()
def train(call: CallWrapper, state: FrozenState) -> None:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
    for _ in range(3):
        model(torch.ones(1, 100)).sum().backward()
        call.ping()
    if call.iteration % every == 0:
        now = {"restarts": call.iteration, "rank": state.rank, "at_s": time.monotonic(), **held()}
        os.write(1, f"{json.dumps(now)}\n".encode())  # in one piece: the ranks share the log
        dist.barrier()  # else one that fails may interrupt the other's look
    if call.iteration < times:
        if state.rank == call.iteration % state.world_size:
            raise ValueError("the loss is not a number")
        model(torch.ones(1, 100)).sum().backward()


train()
