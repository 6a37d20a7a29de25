"""The steps of scripts/check_gpu's trainers: a sum over all ranks in each."""

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from softrun import World


def steps_of(world: World, step: torch.Tensor) -> Iterator[None]:
    """Take `step` from rank 0, and count it up; yields after each step of this world."""
    dist.broadcast(step, 0)
    while True:
        total = torch.ones(1, device=step.device)
        dist.all_reduce(total)
        summed = total.item()
        world.check()  # an aborted collective of NCCL leaves what it was given
        if summed != world.world_size:
            raise AssertionError(f"summed {summed} over {world.world_size} ranks")
        time.sleep(0.005)
        step += 1
        world.check(int(step))
        yield
