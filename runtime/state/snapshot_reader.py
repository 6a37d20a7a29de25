"""Snapshots as storage of torch.distributed.checkpoint: its planner finds out which bytes go where, so a sharded state
can be loaded by any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from softrun.runtime.snapshots.images import Image
from softrun.runtime.state.specs import Sizes, Spec
from softrun.runtime.state.stored import Stored

if TYPE_CHECKING:
    import torch

Fetch = Callable[[Image, int, memoryview], None]
"""Fills the memory with the bytes of an image from a place on. Raises OSError, and SnapshotError."""


class _Chunk(NamedTuple):
    spec: Spec
    image: Image
    begin: int

    @property
    def offset(self) -> Sizes:
        return self.spec.offset or (0,) * len(self.spec.shape)

    def read(self, offsets: Sizes, lengths: Sizes, fetch: Fetch) -> torch.Tensor:
        """A part of this tensor. Only its rows are fetched, if it has rows."""
        import torch

        shape = self.spec.shape
        first, rows = (offsets[0], lengths[0]) if shape else (0, 1)
        row = prod(shape[1:]) * self.spec.torch_dtype.itemsize
        flat = torch.empty(rows * row, dtype=torch.uint8)
        if flat.numel():
            fetch(self.image, self.begin + first * row, _memory(flat))
        found = flat.view(self.spec.torch_dtype).view((rows, *shape[1:]) if shape else ())
        for dimension, (offset, length) in enumerate(zip(offsets[1:], lengths[1:], strict=True), 1):
            found = found.narrow(dimension, offset, length)
        return found


def snapshot_reader(images: list[tuple[Image, Stored]], fetch: Fetch) -> Any:
    """Return a StorageReader of a snapshot, all of whose images are given."""
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        TensorProperties,
        TensorStorageMetadata,
    )
    from torch.distributed.checkpoint.storage import StorageReader
    from torch.futures import Future

    chunks: dict[str, dict[Sizes, _Chunk]] = {}
    for image, stored in images:
        for place in stored.places:
            chunk = _Chunk(stored.spec(place), image, place.begin)
            chunks.setdefault(chunk.spec.name, {}).setdefault(chunk.offset, chunk)

    class SnapshotReader(StorageReader):
        def reset(self, checkpoint_id: Any = None) -> None:
            pass

        @classmethod
        def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
            return checkpoint_id is None

        def read_metadata(self, *_: Any, **__: Any) -> Any:
            return Metadata({name: self._tensor(list(parts.values())) for name, parts in chunks.items()})

        def _tensor(self, parts: list[_Chunk]) -> Any:
            spec = parts[0].spec
            return TensorStorageMetadata(
                properties=TensorProperties(dtype=spec.torch_dtype),
                size=_size(spec.shape if spec.whole is None else spec.whole),
                chunks=[ChunkStorageMetadata(_size(chunk.offset), _size(chunk.spec.shape)) for chunk in parts],
            )

        def set_up_storage_reader(self, *_: Any, **__: Any) -> None:
            pass

        def prepare_local_plan(self, plan: Any) -> Any:
            return plan

        def prepare_global_plan(self, plans: Any) -> Any:
            return plans

        def read_data(self, plan: Any, planner: Any) -> Any:
            for item in plan.items:
                chunk = chunks[item.storage_index.fqn][tuple(item.storage_index.offset)]
                target = planner.resolve_tensor(item).detach()
                target.copy_(chunk.read(tuple(item.storage_offsets), tuple(item.lengths), fetch))
                planner.commit_tensor(item, target)
            done: Future[None] = Future()
            done.set_result(None)
            return done

    return SnapshotReader()


def _size(of: Sizes) -> torch.Size:
    import torch

    return torch.Size(of)


def _memory(flat: torch.Tensor) -> memoryview:
    import ctypes

    return memoryview((ctypes.c_char * flat.numel()).from_address(flat.data_ptr())).cast("B")
