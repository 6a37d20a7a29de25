"""Sums over all ranks in every step, under the wrapper. See scripts/check_gpu.py.

gpu_wrapper.py BACKEND DIRECTORY; it takes orders in DIRECTORY, see ordered_fault.py.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
from gpu_device import device_of
from gpu_steps import steps_of
from ordered_fault import OrderedFault

from softrun.runtime import World
from softrun.runtime.inprocess import CudaHealthCheck, Wrapper

backend = sys.argv[1]
device = device_of(backend, int(os.environ["LOCAL_RANK"]))
step = torch.zeros(1, dtype=torch.int64, device=device)


@Wrapper(health_check=CudaHealthCheck(), soft_timeout=timedelta(seconds=2))
def train(world: World) -> None:
    fault = OrderedFault(Path(sys.argv[2]), world.local_rank)
    with world.process_group(backend):
        for _ in steps_of(world, step):
            fault.befall()


train()
