"""Sums over all ranks in every step, under the wrapper. See scripts/check_gpu.py.

gpu_wrapper.py BACKEND DIRECTORY; it takes orders in DIRECTORY, see ordered_fault.py.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from gpu_device import device_of
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
        dist.broadcast(step, 0)
        while True:
            total = torch.ones(1, device=device)
            dist.all_reduce(total)
            summed = total.item()
            world.check()  # an aborted collective of NCCL leaves what it was given
            if summed != world.world_size:
                raise AssertionError(f"summed {summed} over {world.world_size} ranks")
            time.sleep(0.005)
            step.add_(1)
            world.check(int(step))
            fault.befall()


train()
