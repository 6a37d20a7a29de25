"""Meets in a group by env:// and sums; then one rank is killed, another one in every world, until there were enough.

meet.py DIRECTORY WORLDS
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

directory, worlds = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
for _ in range(3):
    total = torch.ones(1)
    dist.all_reduce(total)
    if total.item() != size:
        raise AssertionError(f"summed {total.item()} over {size} ranks")
(directory / f"met-{count}-{rank}-of-{size}").touch()
dist.barrier()
if count < worlds:
    if rank == count % size:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()  # which raises
dist.destroy_process_group()
