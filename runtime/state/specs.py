"""What a tensor of a state is, in words that ranks can compare before a byte of it travels."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

MOST_ELEMENTS = 1 << 46
"""No tensor has more: a description that says so is damaged."""

Sizes = tuple[int, ...]


class Spec(BaseModel):
    """One tensor as a rank has it: if the tensor is sharded, the part that is there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    dtype: str = Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")
    shape: Sizes
    """Of the part that is here."""
    offset: Sizes = ()
    """Where that part begins in the whole; empty if it is the whole."""
    whole: Sizes | None = None
    """The shape of the whole, if the tensor is sharded."""
    device: str = Field(pattern=r"^[a-z]{1,20}$")

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if min((*self.shape, *self.offset, *(self.whole or ())), default=0) < 0 or prod(self.shape) > MOST_ELEMENTS:
            raise ValueError(f"no tensor has the shape {self.shape}")
        return self

    @classmethod
    def of(cls, name: str, tensor: Any) -> Spec:
        """Raises TypeError if the tensor has no bytes of its own to send."""
        local = local_part(tensor)
        if (kind := unfit(local)) is not None:
            raise TypeError(f"{name} is {kind}, which cannot be sent to another rank: make it a dense tensor")
        sharded = local is not tensor
        return cls(
            name=name,
            dtype=str(local.dtype).removeprefix("torch."),
            shape=tuple(local.shape),
            offset=_offset(tensor) if sharded else (),
            whole=tuple(tensor.shape) if sharded else None,
            device=local.device.type,
        )

    def __str__(self) -> str:
        part = f" from {list(self.offset)} of {list(self.whole)}" if self.whole is not None else ""
        return f"{self.dtype}{list(self.shape)}{part}"

    @property
    def whole_tensor(self) -> str:
        """The tensor of which this is a part, in words."""
        return f"{self.dtype}{list(self.shape if self.whole is None else self.whole)}"

    @property
    def torch_dtype(self) -> torch.dtype:
        """Raises ValueError if this torch has no such dtype."""
        import torch

        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(
                f"{self.name} is of torch.{self.dtype} on the rank it should come from, and not known here"
            )
        return dtype


def local_part(tensor: Any) -> torch.Tensor:
    """Return the part of a tensor that this rank holds: a DTensor's, or the tensor itself."""
    return tensor.to_local() if _is_sharded(tensor) else tensor  # type: ignore[no-any-return]


def device_of(specs: Iterable[Spec]) -> str:
    """The kind of device on which most of the elements are."""
    found: Counter[str] = Counter()
    for spec in specs:
        found[spec.device] += prod(spec.shape)
    return found.most_common(1)[0][0] if found else "cpu"


def part_of(specs: Iterable[Spec]) -> int:
    """A number of 62 bits that says which parts of the sharded tensors these are; 0 if none is sharded."""
    parts = [(spec.name, spec.shape, spec.offset) for spec in specs if spec.whole is not None]
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2 if parts else 0


def _is_sharded(tensor: Any) -> bool:
    dtensors: Any = sys.modules.get("torch.distributed.tensor")
    return dtensors is not None and isinstance(tensor, dtensors.DTensor)


def _offset(tensor: Any) -> Sizes:
    """Computed while the tensor's mesh is of this world, and remembered there: later, this rank may be another one."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements
    known = mesh.__dict__.setdefault("softrun_offsets", {})
    if (tensor.shape, placements) not in known:
        _, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
        known[tensor.shape, placements] = tuple(offset)
    return known[tensor.shape, placements]  # type: ignore[no-any-return]


def unfit(tensor: torch.Tensor) -> str | None:
    """Why a tensor has no bytes of its own, in words; None if it has."""
    if tensor.is_meta:
        return "on the meta device"
    if tensor.is_quantized:
        return "quantized"
    return None if str(tensor.layout) == "torch.strided" else f"of the layout {tensor.layout}"
