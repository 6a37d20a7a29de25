"""Sums over all ranks in every step; in the first world the last rank leaves the others waiting. See check_gpu.py.

gpu_timeout.py BACKEND DIRECTORY
"""

import os
import sys
import time
from datetime import timedelta

import torch
from gpu_device import device_of
from gpu_steps import steps_of

import softrun

backend = sys.argv[1]
device = device_of(backend, int(os.environ["LOCAL_RANK"]))
step = torch.zeros(1, dtype=torch.int64, device=device)
for world in softrun.worlds():
    with world.process_group(backend, timeout=timedelta(seconds=3)):
        for _ in steps_of(world, step):
            while world.round == 1 and world.rank == world.world_size - 1 and int(step) >= 10:
                time.sleep(0.01)
                world.check()
