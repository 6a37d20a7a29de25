"""As meet.py, but the survivors stay: each meets by env:// in every world, in its own process (the RFC's loop).

meet_again.py DIRECTORY [WORLDS]

Without WORLDS nobody is killed: each waits for the event of another world.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from softrun import get_worker_event, get_worker_info

directory, worlds = Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else None
torch.set_num_threads(1)
while True:
    get_worker_info()
    count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    try:
        dist.init_process_group("gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
        for _ in range(3):
            total = torch.ones(1)
            dist.all_reduce(total)
            if total.item() != size:
                raise AssertionError(f"summed {total.item()} over {size} ranks")
        (directory / f"met-{count}-{rank}-of-{size}").touch()
        dist.barrier()
        if worlds is None:
            world = get_worker_event()
            while get_worker_event() == world:
                time.sleep(0.01)
            dist.destroy_process_group()
            continue
        if count >= worlds:
            break
        if rank == count % size:
            os.kill(os.getpid(), signal.SIGKILL)
        # gloo forgets what is written to a peer in the moment of its death, and waits for ever: not a matter here.
        time.sleep(0.1)
        dist.barrier()  # which raises
    except RuntimeError:
        if dist.is_initialized():
            dist.destroy_process_group()
dist.destroy_process_group()
