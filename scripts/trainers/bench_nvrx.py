"""Sums over all ranks in every step, under the in-process wrapper of nvidia-resiliency-ext. See scripts/bench_nvrx.py.

bench_nvrx.py SETTINGS DIRECTORY STORE_PORT, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment. It
logs steps in DIRECTORY/steps and takes orders there, see ordered_fault.py.
"""

import gc
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from measured_steps import MeasuredSteps

# Not in the environment that types are checked in.
from nvidia_resiliency_ext.inprocess import CallWrapper, Wrapper  # type: ignore[import-not-found]
from torch._C._distributed_c10d import PrefixStore, TCPStore


def seconds(**values: float) -> dict[str, timedelta]:
    return {name: timedelta(seconds=value) for name, value in values.items()}


def short(soft_timeout: float, hard_timeout: float) -> dict[str, timedelta]:
    """The smallest intervals. The monitor process looks at the timeouts only when no ping came for an interval, so the
    watchdog's must be longer than its own."""
    return seconds(
        monitor_thread_interval=0.01,
        monitor_process_interval=0.01,
        progress_watchdog_interval=0.05,
        heartbeat_interval=0.05,
        heartbeat_timeout=1,
        soft_timeout=soft_timeout,
        hard_timeout=hard_timeout,
        barrier_timeout=60,
        completion_timeout=60,
        last_call_wait=0,
        termination_grace_time=0,
    )


# What the wrapper is called with, and the timeout of the gloo group. A rank that waits in a collective sends no pings:
# the group's timeout must be shorter than the others, or healthy ranks are killed.
SETTINGS: dict[str, tuple[dict[str, timedelta], timedelta | None]] = {
    "default": ({}, None),
    "guide": ({}, timedelta(seconds=10)),  # its guide: a short timeout of the group, since gloo has no abort
    # Half of it does not get through the first steps on 2 cores; on a busy machine, this loses healthy ranks, too.
    "fastest": (short(0.15, 0.2), timedelta(seconds=0.1)),
    # The smallest that made no false alarm in 20 s beside three busy loops on 2 cores.
    "steady": (short(0.6, 0.75), timedelta(seconds=0.5)),
    # A hang is one after 2 s, as in the measurement of softrun beside it.
    "matched": (short(2, 2.2), timedelta(seconds=1.9)),
}

settings, directory, store_port = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
first_rank, first_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
steps = MeasuredSteps(directory)
wrapper_settings, group_timeout = SETTINGS[settings]


def train(call_wrapper: CallWrapper | None = None) -> None:  # the wrapper wants a default, and replaces it
    if call_wrapper is None:
        raise AssertionError("not wrapped")
    rank, world_size, iteration = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), call_wrapper.iteration
    dist.init_process_group(
        "gloo",
        store=PrefixStore(str(iteration), store),
        rank=rank,
        world_size=world_size,
        timeout=group_timeout,
    )
    steps.heal()
    while True:
        done = steps.take(world_size)
        # `round` is what local_cluster.py calls an iteration.
        line = {"mono": time.monotonic(), "pid": os.getpid(), "rank": rank, "world_size": world_size}
        log.write(json.dumps({**line, "round": iteration, "iteration": iteration, "step": done}) + "\n")


torch.set_num_threads(1)
log = (directory / "steps" / f"{os.getpid()}.jsonl").open("a", buffering=1)
# As in nvidia-resiliency-ext's examples: a store of the trainer's own, with a prefix for each iteration.
store = TCPStore("127.0.0.1", store_port, first_size, first_rank == 0, multi_tenant=True)
if settings in ("fastest", "steady", "matched"):
    gc.collect()
    gc.freeze()  # the wrapper collects garbage until there is none, in each restart: 0.3 s without this
    gc.disable()
Wrapper(**wrapper_settings)(train)()
