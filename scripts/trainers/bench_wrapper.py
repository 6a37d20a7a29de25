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
from measured_steps import MeasuredSteps

import softrun
from softrun import WorkerEvent, WorkerState
from softrun.runtime import World
from softrun.runtime.inprocess import CallWrapper, Wrapper

directory = Path(sys.argv[1])
(directory / f"imported-{os.getpid()}").write_text(repr(time.monotonic()))
wrapper = Wrapper(soft_timeout=timedelta(seconds=float(sys.argv[2]))) if len(sys.argv) > 2 else Wrapper()
steps = MeasuredSteps(directory)


@wrapper
def train(call: CallWrapper, world: World) -> None:
    dist.init_process_group("gloo")
    steps.heal()
    while True:
        done = steps.take(world.world_size)
        call.ping()
        world.check(done)


def note(event: WorkerEvent) -> None:
    if event.worker_state is WorkerState.PAUSED:
        print(event.timestamp, file=pauses)


torch.set_num_threads(1)
with (directory / "pauses").open("a", buffering=1) as pauses:
    softrun.on_world_change(note)
    train()
