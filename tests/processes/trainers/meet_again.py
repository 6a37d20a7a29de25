"""As meet.py, but the survivors stay: each meets by env:// in every world, in its own process (the RFC's loop).

meet_again.py DIRECTORY [WORLDS SIZE]

One is killed in each world of SIZE, until there were WORLDS. Without these nobody is killed: each waits for the event
of another world.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from softrun import get_worker_event, get_worker_info

directory = Path(sys.argv[1])
worlds, whole = map(int, sys.argv[2:]) if sys.argv[2:] else (None, 0)
torch.set_num_threads(1)


def met_by_all(count: int, size: int) -> bool:
    return all((directory / f"met-{count}-{rank}-of-{size}").exists() for rank in range(size))


while True:
    get_worker_info()
    world = get_worker_event()
    count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    try:
        dist.init_process_group("gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
        for _ in range(3):
            total = torch.ones(1)
            dist.all_reduce(total)
            if total.item() != size:
                raise AssertionError(f"summed {total.item()} over {size} ranks")
        dist.barrier()
        (directory / f"met-{count}-{rank}-of-{size}").touch()
        if worlds is not None and count >= worlds:
            break
        # gloo forgets what is written to a peer in the moment of its death, and waits for ever: not a matter here. So
        # nobody is killed, by itself or by the test, before all have met.
        while get_worker_event() == world:
            if size == whole and rank == count % size and met_by_all(count, size):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.005)
        dist.destroy_process_group()
    except RuntimeError:
        if dist.is_initialized():
            dist.destroy_process_group()
dist.destroy_process_group()
