"""Empty blocks of live_workers, and what torch offers instead. See bench_live."""

import json
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from bench_turns import median_and_p99, times

import softrun

blocks, steps = int(sys.argv[1]), int(sys.argv[2])
STEP_S = 0.05
torch.set_num_threads(1)
step = 0


def block() -> None:
    global step
    with softrun.live_workers(step):
        pass
    step += 1


def stepping(around: Callable[[], None]) -> float:
    """Seconds for all steps, in each of which the workers meet in an all-reduce, as they do in a training."""
    total = torch.ones(1)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        time.sleep(STEP_S)
        dist.all_reduce(total)
        around()
    return time.perf_counter() - began


with softrun.live_workers(step) as world:
    world.process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
step += 1
turn = 0


def vote() -> None:
    """Count, and wait for the last."""
    global turn
    turn += 1
    if store.add(f"vote/{turn}", 1) == world.world_size:
        store.set(f"all/{turn}", "here")
    store.wait([f"all/{turn}"])


median, p99 = median_and_p99(times(block, blocks))
found = {
    "block": median,
    "block_p99": p99,
    "barrier": median_and_p99(times(dist.barrier, blocks // 3))[0],
    "store": median_and_p99(times(vote, blocks // 3))[0],
    "steps_without": stepping(lambda: None),
    "steps_with": stepping(block),
}
if world.rank == 0:
    print(json.dumps(found), flush=True)
dist.barrier()
dist.destroy_process_group()
