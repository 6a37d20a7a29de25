"""The steps of the trainers that are measured side by side: each waits, sums over all ranks, and fails on order."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ordered_fault import OrderedFault

STEP_S = 0.005


class MeasuredSteps:
    """Of this rank, which takes orders in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._done = torch.zeros(1, dtype=torch.int64)
        self._fault = OrderedFault(directory, int(os.environ["RANK"]))

    def heal(self) -> None:
        """Every member of a new group calls it first: all have done as many as rank 0 from then on."""
        dist.broadcast(self._done, 0)

    def take(self, world_size: int) -> int:
        """Take one; returns how many are done. Raises RuntimeError if that was ordered."""
        self._fault.befall()
        time.sleep(STEP_S)
        total = torch.ones(1)
        dist.all_reduce(total)
        if total.item() != world_size:
            raise AssertionError(f"summed {total.item()} over {world_size} ranks")
        self._done.add_(1)
        return int(self._done)
