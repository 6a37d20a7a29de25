"""A rank whose collective is aborted, and which then builds its group again. See scripts/check_gpu.py.

gpu_abort.py BACKEND peer | kernel, with torchrun's variables in the environment and the store at MASTER_PORT hosted by
somebody else. The last rank never comes to the collective. `kernel`: each rank computes for two seconds before it can.
Prints a line of JSON: {"out": seconds from the abort until it came out, "rebuild": from there to a sum in a new group}.
"""

import json
import os
import sys
import threading
import time
from contextlib import suppress

import torch
import torch.distributed as dist
from gpu_device import device_of

from softrun.runtime.groups.abort import abort_all, track_groups
from softrun.runtime.groups.groups import leave_groups

SIT_S = 1.0
"""For a collective of which nobody comes out by itself."""
KERNEL_S = 2.0

backend, behind, rank, ranks = *sys.argv[1:], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = device_of(backend, int(os.environ["LOCAL_RANK"]))
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)


def build(name: str) -> None:
    """The default group, and a first sum: NCCL makes its communicator then."""
    dist.init_process_group(backend, store=dist.PrefixStore(name, store), rank=rank, world_size=ranks)
    expect_sum()


def expect_sum() -> None:
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
    if total.item() != ranks:
        raise AssertionError(f"summed {total.item()} over {ranks} ranks")


def compute() -> None:
    """In a kernel that nothing interrupts; on the CPU, in the main thread."""
    if device.type == "cuda":
        torch.cuda._sleep(int(KERNEL_S * 1e6 * torch.cuda.clock_rate(device)))  # in cycles; the rate is in MHz
        return
    end = time.monotonic() + KERNEL_S
    numbers = torch.ones(500, 500)
    while time.monotonic() < end:
        numbers @ numbers


def sit_and_be_aborted() -> float:
    """Returns how long it took to come out of the collective."""
    came_out = threading.Event()
    aborted_at: list[float] = []

    def abort() -> None:
        if came_out.wait(SIT_S):
            return
        aborted_at.append(time.monotonic())
        abort_all()

    thread = threading.Thread(target=abort)
    thread.start()
    # gloo raises; with NCCL the call returns at once, and what waits for its kernel returns after the abort.
    with suppress(RuntimeError):
        if behind == "kernel":
            compute()
        dist.all_reduce(torch.ones(1, device=device))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    came_out.set()
    thread.join()
    if not aborted_at:
        raise AssertionError("the collective ended although a rank never came")
    return time.monotonic() - aborted_at[0]


track_groups()
build("first")
told = {}
if rank < ranks - 1:
    told["out"] = sit_and_be_aborted()
    store.add("came out", 1)
    if store.add("came out", 0) == ranks - 1:
        store.set("all came out", "")
else:
    store.wait(["all came out"])
began = time.monotonic()
leave_groups(in_trouble=True)
build("second")
told["rebuild"] = time.monotonic() - began
print(json.dumps(told), flush=True)
leave_groups(in_trouble=False)
