"""Which samples a rank takes: each sample of an epoch once, whatever joins, leaves and dies meanwhile.

The order of an epoch depends on the seed and the epoch alone, and how far training has come is one number that is the
same on all ranks. So a change of the world changes only who takes which part of the next global batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from softrun.runtime.share import share_of

if TYPE_CHECKING:
    import torch

MOST_IDLE = 100
"""How many whole passes in a row may commit nothing: a loop that never commits would take the same epoch for ever."""

_SEEDS = 1 << 63


@dataclass(frozen=True)
class Piece:
    """A piece of this rank's part of a global batch. Multiply the mean loss over it by `weight`, and add all up."""

    data: Any
    """What the loader gave."""
    weight: float
    is_last: bool
    """The gradients are complete with it, so the ranks average them in its backward pass."""


class ElasticSampler:
    """The global batches of a dataset, as a DataLoader's `batch_sampler`; each yields this rank's part of one.

    Call `commit` after each optimizer step, and give it to newcomers with the model (`state_dict`). Each pass over the
    loader begins after the last committed batch, with this worker's place in its world, and ends with the epoch. So
    iterate over the loader anew in each world: what was loaded ahead and not committed is loaded again there.

        sampler = softrun.ElasticSampler(dataset, global_batch_size=256)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
        for world in softrun.worlds():
            with world.process_group():
                ...                                          # all take model, optimizer and sampler from rank 0
                while sampler.epoch < epochs:
                    for images, labels in loader:
                        loss = cross_entropy(parallel(images), labels)
                        (loss * world.share(sampler.batch_size).weight).backward()
                        optimizer.step()
                        sampler.commit()
                        world.check(sampler.steps)

    `shuffle`: in another order in each epoch, which depends on `seed` and the epoch; it takes 8 bytes of memory for
    each sample. `drop_last`: leave out the samples at an epoch's end that are too few for a global batch. A rank for
    which there is no sample, in a world of more ranks than a batch has samples, gets the first one of the batch: its
    weight is 0.

    `micro_batch_size`: how many samples a rank can take at once. If its part of a global batch has more, the loader
    gives it in pieces, as many on each rank, and `accumulated(loader)` says which belong together. It may be another
    one whenever the job is started again.

    An iterable dataset has no samples with numbers, but it may have shards: make the shards the dataset, and each
    sample a whole shard (or a fixed part of one). Then each shard is trained on by one committed step. What is not
    exact is anything smaller: a shard whose step was not committed is read again from its beginning.

    The place is read from RANK and WORLD_SIZE, so it also serves a wrapped function, the soft-restart RFC's loop, and
    programs under torchrun or under no launcher. Raises TypeError for a dataset without a length, and ValueError if
    there is no whole batch.
    """

    def __init__(
        self,
        dataset: Sized,
        global_batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        micro_batch_size: int | None = None,
    ) -> None:
        if not isinstance(dataset, Sized):
            raise TypeError(
                f"{type(dataset).__name__} has no length, so its samples have no numbers that could be shared out: "
                "use a dataset with __len__ and __getitem__"
            )
        self._length = len(dataset)
        if global_batch_size < 1:
            raise ValueError(f"global_batch_size is at least 1, not {global_batch_size}")
        if self._length < (global_batch_size if drop_last else 1):
            raise ValueError(
                f"a dataset of {self._length} samples has no batch of {global_batch_size}: choose a smaller one"
                + (", or drop_last=False" if self._length else "")
            )
        if micro_batch_size is not None and micro_batch_size < 1:
            raise ValueError(f"micro_batch_size is at least 1, not {micro_batch_size}")
        self._global_batch_size = global_batch_size
        self._micro_batch_size = micro_batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._drop_last = drop_last
        self._epoch = 0
        self._batch = 0  # how many batches of this epoch are committed
        self._idle = 0  # passes in a row without a commit
        self._shuffled: tuple[int, torch.Tensor] | None = None  # an epoch and its order

    @property
    def epoch(self) -> int:
        """The epoch that is under way, from 0."""
        return self._epoch

    @property
    def steps(self) -> int:
        """How many global batches were committed, in all epochs."""
        return self._epoch * self._batches + self._batch

    @property
    def batch_size(self) -> int:
        """How many samples the next global batch to be committed has: fewer than asked for at an epoch's end."""
        return self._size(self._batch)

    def commit(self) -> None:
        """Note that the next global batch was trained on: call it after the optimizer's step, on all ranks."""
        self._idle = 0
        self._batch += 1
        if self._batch == self._batches:
            self._epoch, self._batch = self._epoch + 1, 0

    def __iter__(self) -> Iterator[list[int]]:
        self._idle += 1
        if self._idle > MOST_IDLE:
            raise RuntimeError(
                f"{MOST_IDLE} passes over the data have committed nothing: call commit() after each step"
            )
        return self._parts(self._epoch, self._batch, *_place())

    def __len__(self) -> int:
        """How many batches are left of this epoch; with `micro_batch_size`, how many pieces of them for each rank."""
        _, world_size = _place()
        return sum(self._pieces(self._size(batch), world_size) for batch in range(self._batch, self._batches))

    def accumulated(self, loader: Iterable[Any]) -> Iterator[list[Piece]]:
        """Yield the pieces of each global batch that this rank takes, of a loader with this sampler, until the epoch's
        end. All ranks get as many, and the gradients of all of them together are those of the global batch's mean.

            for pieces in sampler.accumulated(loader):
                optimizer.zero_grad()
                for piece in pieces:
                    images, labels = piece.data
                    with nullcontext() if piece.is_last else parallel.no_sync():  # FSDP2: set_requires_gradient_sync
                        (cross_entropy(parallel(images), labels) * piece.weight).backward()
                optimizer.step()
                state.commit()
                world.check(sampler.steps)

        Iterate anew in each world, as over the loader itself.
        """
        rank, world_size = _place()
        loaded = iter(loader)
        for batch in range(self._batch, self._batches):
            size = self._size(batch)
            own, count = share_of(size, rank, world_size), self._pieces(size, world_size)
            pieces = []
            for number in range(count):
                samples = len(share_of(len(own), number, count)) if len(own) else 0
                weight = samples * world_size / size
                pieces.append(Piece(next(loaded), weight, number == count - 1))
            yield pieces

    @property
    def indices(self) -> Indices:
        """The same, sample by sample, for a loader that makes the batches itself, if all pieces are full (`Indices`).

        DataLoader(dataset, sampler=sampler.indices, batch_size=micro_batch_size)
        """
        return Indices(self)

    def state_dict(self) -> dict[str, Any]:
        """How far training has come, and of what: it is the same on all ranks, and fits a world of any size."""
        return {**self._fingerprint, "epoch": self._epoch, "batch": self._batch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there. Raises ValueError, and changes nothing, if it is of other data or another batch size."""
        for name, own in self._fingerprint.items():
            if name not in state_dict or state_dict[name] != own:
                raise ValueError(
                    f"the sampler's state has {name} {state_dict.get(name)!r}, this one {own!r}: go on with the same "
                    "data and settings, or begin without that state"
                )
        epoch, batch = state_dict["epoch"], state_dict["batch"]
        if not (isinstance(epoch, int) and isinstance(batch, int) and epoch >= 0 and 0 <= batch < self._batches):
            raise ValueError(f"the sampler's state is damaged: epoch {epoch!r}, batch {batch!r} of {self._batches}")
        self._epoch, self._batch, self._idle = epoch, batch, 0

    @property
    def _fingerprint(self) -> dict[str, Any]:
        return {
            "length": self._length,
            "global_batch_size": self._global_batch_size,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "drop_last": self._drop_last,
        }

    @property
    def _batches(self) -> int:
        """How many an epoch has."""
        whole, rest = divmod(self._length, self._global_batch_size)
        return whole + (rest > 0 and not self._drop_last)

    def _size(self, batch: int) -> int:
        return min(self._global_batch_size, self._length - batch * self._global_batch_size)

    def _pieces(self, size: int, world_size: int) -> int:
        """In how many pieces each rank takes its part of a global batch of this size."""
        if self._micro_batch_size is None:
            return 1
        return ceil(ceil(size / world_size) / self._micro_batch_size)

    def _parts(self, epoch: int, first: int, rank: int, world_size: int) -> Iterator[list[int]]:
        order = self._order(epoch)
        for batch in range(first, self._batches):
            begin, size = batch * self._global_batch_size, self._size(batch)
            own, count = share_of(size, rank, world_size), self._pieces(size, world_size)
            for number in range(count):
                piece = share_of(len(own), number, count) if len(own) else own
                at = begin + own.start + piece.start if len(piece) else begin
                part = order[at : at + max(len(piece), 1)]
                yield part.tolist() if self._shuffle else list(part)

    def _order(self, epoch: int) -> Any:
        """The samples' numbers in the order of an epoch. It is kept, or each change of the world would shuffle anew."""
        if not self._shuffle:
            return range(self._length)
        import torch

        if self._shuffled is None or self._shuffled[0] != epoch:
            generator = torch.Generator().manual_seed((self._seed * 1_000_003 + epoch) % _SEEDS)
            self._shuffled = epoch, torch.randperm(self._length, generator=generator)
        return self._shuffled[1]


class Indices:
    """The samples of a rank one by one, for a DataLoader's `sampler`, whose `batch_size` is the `micro_batch_size`.

    Such a loader counts to `batch_size`, whatever belongs together, so a global batch must be a whole number of
    batches for each rank, in every world: iterating raises ValueError if it is not, also for the last one of an epoch.
    """

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[int]:
        micro = self._sampler._micro_batch_size
        if micro is None:
            raise ValueError("micro_batch_size is not given: it is the loader's batch_size")
        for piece in self._sampler:
            if len(piece) != micro:
                raise ValueError(
                    f"a piece of {len(piece)} samples is no batch of {micro}: let the global batch be a multiple of "
                    "ranks x micro_batch_size in every world, with drop_last=True, or use batch_sampler=, which needs "
                    "no such thing"
                )
            yield from piece

    def __len__(self) -> int:
        return len(self._sampler) * (self._sampler._micro_batch_size or 1)


def _place() -> tuple[int, int]:
    """This process's rank, and how many ranks there are."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
