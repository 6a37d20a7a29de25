"""Says to which device its group is bound. See scripts/check_gpu.py.

gpu_bound.py BACKEND told | untold
"""

import os
import sys

import torch
import torch.distributed as dist
from gpu_device import device_of

import softrun

backend, how = sys.argv[1:]
device = device_of(backend, int(os.environ["LOCAL_RANK"]))
for world in softrun.worlds():
    with world.process_group(backend, device_id=device if how == "told" else None):
        dist.all_reduce(torch.ones(1, device=device))
        torch.cuda.synchronize(device)
        bound = dist.distributed_c10d._get_default_group().bound_device_id
        if how == "told" and bound != device:
            raise AssertionError(f"told {device}, bound to {bound}")
        print(f"rank {world.rank} of {device} is bound to {bound}", flush=True)
