"""What torch's flight recorder shows while a collective is stuck. See scripts/check_gpu.py.

gpu_recorder.py BACKEND, with TORCH_FR_BUFFER_SIZE, torchrun's variables in the environment and the store at MASTER_PORT
hosted by somebody else. The last rank never comes to the second collective. Each other rank prints a line of JSON:
{"finished": collectives that the dump shows as completed, "stuck": and those that it does not}.
"""

import json
import os
import sys
import threading
from contextlib import suppress

import torch
import torch.distributed as dist
from gpu_device import device_of
from torch._C import _distributed_c10d

from softrun.runtime.groups.abort import abort_all, track_groups
from softrun.runtime.groups.groups import leave_groups

SIT_S = 1.0
"""For a collective of which nobody comes out by itself."""

backend, rank, ranks = sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = device_of(backend, int(os.environ["LOCAL_RANK"]))
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)


def look_and_abort() -> None:
    name = "_dump_nccl_trace_json" if backend == "nccl" else "_dump_fr_trace_json"
    dump = getattr(_distributed_c10d, name)
    entries = json.loads(dump())["entries"]
    sums = [entry for entry in entries if "all_reduce" in entry["profiling_name"]]
    finished = sum(entry["retired"] for entry in sums)
    print(json.dumps({"finished": finished, "stuck": len(sums) - finished}), flush=True)
    abort_all()


track_groups()
dist.init_process_group(backend, store=dist.PrefixStore("first", store), rank=rank, world_size=ranks)
dist.all_reduce(torch.ones(1, device=device))
if rank < ranks - 1:
    timer = threading.Timer(SIT_S, look_and_abort)
    timer.start()
    with suppress(RuntimeError):
        dist.all_reduce(torch.ones(1, device=device))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    timer.join()
    store.add("came out", 1)
    if store.add("came out", 0) == ranks - 1:
        store.set("all came out", "")
store.wait(["all came out"])
leave_groups(in_trouble=True)
