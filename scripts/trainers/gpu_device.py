"""Where a rank of scripts/check_gpu works: on a device of its own, on one that it shares with others, or on the CPU."""

import os

import torch


def device_of(backend: str, local_rank: int) -> torch.device:
    """Of this process from now on. Call it before NCCL is used."""
    if backend == "gloo":
        torch.set_num_threads(1)
        return torch.device("cpu")
    # NCCL refuses two ranks on one device, unless it takes them for ranks of two hosts.
    if int(os.environ["LOCAL_WORLD_SIZE"]) > torch.cuda.device_count():
        os.environ["NCCL_HOSTID"] = f"softrun-check-{os.getpid()}"
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
