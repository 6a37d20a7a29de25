"""The RFC's own loop, as it is printed there ("Description"), around one all_reduce a step.

rfc.py STEPS PAUSE_S
"""

import sys
import time

import torch
import torch.distributed as dist

from softrun import get_worker_event, get_worker_info
from softrun.runtime.steplog import log_step

steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
step = 0
worker_info = get_worker_info()
local_attempts, maximum_attempts = 0, 20
while local_attempts < maximum_attempts:
    try:
        dist.init_process_group(backend="gloo", **worker_info.get_pg_parameters())
        state = torch.tensor([step])
        dist.broadcast(state, 0)
        step = int(state)
        while step < steps:
            dist.all_reduce(torch.ones(1))
            time.sleep(pause_s)
            step += 1
            log_step(worker_info, get_worker_event().round, step)
        dist.destroy_process_group()
        break
    except Exception as e:
        print(f"rank {worker_info.rank} caught {type(e).__name__}", flush=True)
        dist.destroy_process_group()
        worker_info = get_worker_info()
        local_attempts += 1
print(f"reached {step}", flush=True)
