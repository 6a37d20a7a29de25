"""Builds, uses and leaves its groups again and again, and says what the process has grown by. See scripts/check_gpu.py.

gpu_rebuilds.py BACKEND TIMES, with torchrun's variables in the environment and the store at MASTER_PORT hosted by
somebody else. Prints a line of JSON: {"before": what it had after the tenth time, "after": what it had in the end}.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from gpu_device import device_of

from softrun.runtime.groups.abort import track_groups
from softrun.runtime.groups.groups import leave_groups

WARM, MB = 10, 1 << 20
backend, times, rank, ranks = sys.argv[1], int(sys.argv[2]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = device_of(backend, int(os.environ["LOCAL_RANK"]))
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)
numbers = torch.empty(10_000_000, device=device)


def held() -> dict[str, float]:
    """What this process holds now. What a GPU has in use is of all its processes."""
    ctypes.CDLL(None).malloc_trim(0)  # without it, what is free counts as well
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    here = {
        "host_mb": pages * os.sysconf("SC_PAGE_SIZE") / MB,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        here["gpu_mb"] = (total - free) / MB / ranks
    return here


track_groups()
before: dict[str, float] = {}
for time in range(1, times + 1):
    dist.init_process_group(backend, store=dist.PrefixStore(f"{time}", store), rank=rank, world_size=ranks)
    dist.all_reduce(numbers.fill_(1))
    if numbers[-1].item() != ranks:
        raise AssertionError(f"summed {numbers[-1].item()} over {ranks} ranks")
    leave_groups(in_trouble=bool(time % 2))
    if time == WARM:
        before = held()
print(json.dumps({"before": before, "after": held()}), flush=True)
