"""What CudaHealthCheck says of a device. See scripts/check_gpu.py.

gpu_health.py well | broken; exits with 0 if it finds a device that is well to be well, and one that is broken, broken.
"""

import os
import sys

import torch

from softrun.runtime.inprocess import CudaHealthCheck, HealthCheckError, State

state = State(
    rank=0, world_size=1, active_rank=0, active_world_size=1, initial_rank=0, initial_world_size=1, iteration=0, round=1
)
device = torch.device("cuda", 0)
values = torch.ones(10, device=device)
torch.cuda.synchronize(device)
if sys.argv[1] == "well":
    CudaHealthCheck()(state)
else:
    values[torch.tensor([100], device=device)]  # a device-side assert, which corrupts the context of this process
    try:
        CudaHealthCheck()(state)
    except HealthCheckError as error:
        print(error, flush=True)
        os._exit(0)  # nothing of CUDA can be ended in order any more
    else:
        raise AssertionError("it takes a device for healthy whose context is corrupted")
