"""What all of softrun's monitoring costs: the same steps with it and without, in turns. See scripts/bench_inprocess.py.

bench_cost.py SECONDS FILE. A step is 5 ms of work on this processor and a sum over all ranks. Blocks of steps with the
monitoring (its threads, a ping and a check in every step) and without come in the order with, without, without, with,
and so on for SECONDS, within one call of a wrapped function and one process group. Rank 0 writes what it measured to
FILE, as JSON.
"""

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist

from softrun.runtime import World, worker
from softrun.runtime.channel.progress import Progress
from softrun.runtime.inprocess import CallWrapper, Wrapper

SECONDS, FILE = float(sys.argv[1]), Path(sys.argv[2])
STEP_S = 0.005
STEPS = 100  # of a block
CALLS = 10_000
SETTLE_S = 0.3  # the thread that beats notices when it beats next
MIN_PAIRS = 4


def work(repetitions: int) -> None:
    for _ in range(repetitions):
        MATRIX.mm(MATRIX)


def repetitions_of_a_step() -> int:
    """As many as take STEP_S."""
    taken = []
    for _ in range(20):
        began = time.perf_counter()
        work(100)
        taken.append((time.perf_counter() - began) / 100)
    return agreed(max(1, round(STEP_S / statistics.median(taken))))


def agreed(number: int) -> int:
    """Rank 0's."""
    value = torch.tensor([number])
    dist.broadcast(value, 0)
    return int(value)


def switch(on: bool) -> None:
    """There is no such switch in softrun: end what runs beside the trainer, or begin it again."""
    mine = worker._worker()
    inbox, progress = mine.inbox, mine._progress
    if on:
        mine._progress = Progress(inbox.page(), mine._each_beat)
        inbox._watch()
    else:
        progress._ended.set()
        mine._progress = None
        inbox._watcher.stop()
        inbox._watcher = None
    time.sleep(SETTLE_S)


def block(repetitions: int, after_step: Callable[[], None]) -> float:
    """Seconds for one step."""
    total = torch.ones(1)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(STEPS):
        work(repetitions)
        dist.all_reduce(total)
        after_step()
    return (time.perf_counter() - began) / STEPS


def threads_s() -> float:
    """The processor time of all threads of Python's but this one."""
    others = [thread.ident for thread in threading.enumerate() if thread is not threading.current_thread()]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in others if ident is not None)


def seconds_of(call: Callable[[], None]) -> float:
    """Of this processor, for one call."""
    began = time.thread_time()
    for _ in range(CALLS):
        call()
    return (time.thread_time() - began) / CALLS


@Wrapper()
def measure(call: CallWrapper, world: World) -> None:
    dist.init_process_group("gloo")
    repetitions = repetitions_of_a_step()

    def monitored() -> None:
        call.ping()
        world.check()

    pair_s = 2 * STEPS * block(repetitions, monitored) + SETTLE_S
    pairs = agreed(max(MIN_PAIRS, round(SECONDS / pair_s)))
    blocks, threads = [], []
    for pair in range(pairs):
        for on in (True, False) if pair % 2 == 0 else (False, True):
            if on is not (worker._worker()._progress is not None):
                switch(on)
            before = threads_s()
            seconds = block(repetitions, monitored if on else lambda: None)
            blocks.append((on, seconds))
            if on:
                threads.append((threads_s() - before) / STEPS / seconds)
    if worker._worker()._progress is None:
        switch(on=True)
    if dist.get_rank() == 0:
        turns = [(a, b) if a[0] else (b, a) for a, b in zip(blocks[::2], blocks[1::2], strict=True)]
        alike = [(a, b) for (on, a), (also, b) in pairwise(blocks) if on == also]
        found = {
            "step_s": statistics.median(seconds for on, seconds in blocks if not on),
            "with_over_without": [a / b - 1 for (_, a), (_, b) in turns],
            "alike_over_alike": [a / b - 1 for a, b in alike],
            "threads_share": statistics.fmean(threads),
            "calls_s": seconds_of(monitored),
            "calls_share": seconds_of(monitored) / STEP_S,
        }
        FILE.write_text(json.dumps(found))
    dist.barrier()


torch.set_num_threads(1)
MATRIX = torch.full((64, 64), 1 / 64)
measure()
