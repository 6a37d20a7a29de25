"""Sums over all ranks in every step, with worlds(). See scripts/check_gpu.py. gpu_worlds.py BACKEND DIRECTORY"""

import os
import sys
import time

import torch
import torch.distributed as dist
from gpu_device import device_of

import softrun

backend = sys.argv[1]
device = device_of(backend, int(os.environ["LOCAL_RANK"]))
step = torch.zeros(1, dtype=torch.int64, device=device)
for world in softrun.worlds():
    with world.process_group(backend):
        dist.broadcast(step, 0)
        while True:
            total = torch.ones(1, device=device)
            dist.all_reduce(total)
            summed = total.item()
            world.check()  # an aborted collective of NCCL leaves what it was given
            if summed != world.world_size:
                raise AssertionError(f"summed {summed} over {world.world_size} ranks")
            time.sleep(0.005)
            step += 1
            world.check(int(step))
