"""What one rank stores of a snapshot: some of its tensors, one after the other, and the description of all."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from softrun.runtime.snapshots.images import divided
from softrun.runtime.state.contents import Description, View
from softrun.runtime.state.specs import Spec

if TYPE_CHECKING:
    import torch

_ALIGNED = 64


class Place(BaseModel):
    """Where the bytes of a tensor are in the image."""

    model_config = ConfigDict(extra="forbid")

    tensor: int
    begin: int


class Stored(BaseModel):
    """What an image has: its keeper keeps this beside the bytes."""

    model_config = ConfigDict(extra="forbid")

    description: Description
    places: list[Place]
    size: int

    @classmethod
    def of(cls, view: View, index: int, count: int) -> Stored:
        """What the rank `index` stores of `count` ranks that have the same tensors."""
        owners = divided([tensor.nbytes for tensor in view.local], count)
        places, size = [], 0
        for tensor, owner in enumerate(owners):
            if owner == index:
                places.append(Place(tensor=tensor, begin=size))
                size += -(-view.local[tensor].nbytes // _ALIGNED) * _ALIGNED
        return cls(description=view.description, places=places, size=size)

    def spec(self, place: Place) -> Spec:
        """The tensor that is there."""
        return self.description.specs[place.tensor]


Copies = list[tuple["torch.Tensor", "torch.Tensor"]]
"""Tensors in the image, and those that are copied there."""


def copies_into(
    memory: mmap.mmap, stored: Stored, local: Sequence[torch.Tensor], steady: Collection[int]
) -> tuple[Copies, Copies]:
    """What is to be copied now, and what may be copied until the next step of an optimizer.

    `steady` has the addresses of the tensors that nothing but an optimizer changes.
    """
    now: Copies = []
    later: Copies = []
    for to, tensor in _pairs(memory, stored, local):
        (later if tensor.data_ptr() in steady else now).append((to, tensor))
    return now, later


def copy_all(copies: Copies) -> None:
    """Copy each tensor to its place."""
    for to, tensor in copies:
        to.copy_(tensor)


def wait_for_devices(copies: Copies) -> None:
    """Wait until the tensors are computed: another thread, with another stream, is going to copy them."""
    import torch

    if any(tensor.device.type != "cpu" for _, tensor in copies):
        torch.accelerator.synchronize()


def _pairs(
    memory: mmap.mmap, stored: Stored, local: Sequence[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    import torch

    for place in stored.places:
        tensor = local[place.tensor].detach()
        if tensor.nbytes:
            flat = torch.frombuffer(memory, dtype=torch.uint8, count=tensor.nbytes, offset=place.begin)
            yield flat.view(tensor.dtype).view(tensor.shape), tensor
