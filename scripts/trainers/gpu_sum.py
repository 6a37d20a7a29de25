"""Whether this many ranks can have a group on these devices at all: they sum once. See scripts/check_gpu.py.

gpu_sum.py BACKEND, with torchrun's variables in the environment and the store at MASTER_PORT hosted by somebody else.
Prints a line of JSON: {"seconds": how long the group and its first sum took}.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from gpu_device import device_of

device = device_of(sys.argv[1], int(os.environ["LOCAL_RANK"]))
total = torch.ones(1, device=device)
began = time.monotonic()
dist.init_process_group(sys.argv[1])
dist.all_reduce(total)
if total.item() != dist.get_world_size():
    raise AssertionError(f"summed {total.item()} over {dist.get_world_size()} ranks")
print(json.dumps({"seconds": time.monotonic() - began}), flush=True)
dist.destroy_process_group()
