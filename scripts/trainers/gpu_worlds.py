"""Sums over all ranks in every step, with worlds(), and marks what it has got to. See scripts/check_gpu.py.

gpu_worlds.py BACKEND DIRECTORY
"""

import os
import sys

import torch
from gpu_device import device_of
from gpu_marks import mark
from gpu_steps import steps_of

import softrun

backend, directory = sys.argv[1:]
device = device_of(backend, int(os.environ["LOCAL_RANK"]))
step = torch.zeros(1, dtype=torch.int64, device=device)
for world in softrun.worlds():
    with world.process_group(backend):
        mark(directory, "built")
        try:
            for _ in steps_of(world, step):
                pass
        finally:
            mark(directory, "out")
