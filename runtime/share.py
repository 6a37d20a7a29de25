"""A rank's part of a global batch: the whole world takes the batch that the user asked for, whatever its size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """A rank's part of a global batch: its samples from `start` to `stop`, the latter not included.

    Multiply the mean loss over the part by `weight`. The average over the ranks, which DistributedDataParallel and FSDP
    take of the gradients, is then the mean over the global batch, also if that does not divide evenly.
    """

    start: int
    stop: int
    weight: float

    def __len__(self) -> int:
        return self.stop - self.start


def share_of(batch: int, rank: int, world_size: int) -> Share:
    """Return the part of `rank` in a global batch of that many samples; no two parts differ by more than one.

    In a world of more ranks than samples some parts are empty, with the weight 0: such a rank must take part in the
    step all the same. Raises ValueError for a batch without samples.
    """
    if batch < 1:
        raise ValueError(f"a global batch has at least one sample, not {batch}")
    start, stop = batch * rank // world_size, batch * (rank + 1) // world_size
    return Share(start, stop, (stop - start) * world_size / batch)
