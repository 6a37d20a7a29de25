"""Sums over all ranks in every step, under softrun's wrapper. See scripts/bench_inprocess.py.

bench_wrapper.py DIRECTORY [SOFT_TIMEOUT_S]; without a timeout the wrapper has its default settings. It takes orders in
DIRECTORY, see ordered_fault.py, notes in DIRECTORY/imported-<process id> when it had imported what it needs, and each
PAUSE in DIRECTORY/pauses: when the agent gave it, in milliseconds since the epoch.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from ordered_fault import OrderedFault

import softrun
from softrun import WorkerEvent, WorkerState
from softrun.runtime import World
from softrun.runtime.inprocess import CallWrapper, Wrapper

STEP_S = 0.005

directory = Path(sys.argv[1])
(directory / f"imported-{os.getpid()}").write_text(repr(time.monotonic()))
wrapper = Wrapper(soft_timeout=timedelta(seconds=float(sys.argv[2]))) if len(sys.argv) > 2 else Wrapper()
fault = OrderedFault(directory, int(os.environ["RANK"]))
step = torch.zeros(1, dtype=torch.int64)


@wrapper
def train(call: CallWrapper, world: World) -> None:
    dist.init_process_group("gloo")
    dist.broadcast(step, 0)
    while True:
        fault.befall()
        time.sleep(STEP_S)
        total = torch.ones(1)
        dist.all_reduce(total)
        if total.item() != world.world_size:
            raise AssertionError(f"summed {total.item()} over {world.world_size} ranks")
        step.add_(1)
        call.ping()
        world.check(int(step))


def note(event: WorkerEvent) -> None:
    if event.worker_state is WorkerState.PAUSED:
        print(event.timestamp, file=pauses)


torch.set_num_threads(1)
with (directory / "pauses").open("a", buffering=1) as pauses:
    softrun.on_world_change(note)
    train()
