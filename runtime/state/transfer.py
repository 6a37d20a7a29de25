"""Moving the bytes of tensors between ranks, in place, in the world's group.

The tensors are one stream of bytes, cut into pieces by their sizes alone: small tensors share a piece, large ones have
several. All ranks begin their transfers in the same order, so none waits for another in a circle.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

PIECE_BYTES = 16 << 20
IN_FLIGHT = 4
"""Pieces under way at a time: what is copied for them takes up to this many times PIECE_BYTES of memory."""

Sources = Mapping[int, Sequence[int]]
"""For each rank that receives, the ranks that it receives from, in turn."""


class Range(NamedTuple):
    """Bytes of one tensor, by its place in the list."""

    tensor: int
    start: int
    stop: int


Piece = list[Range]


def pieces_of(sizes: Sequence[int]) -> list[Piece]:
    """Cut tensors of these sizes, in bytes, into pieces of up to PIECE_BYTES."""
    found: list[Piece] = []
    room = 0
    for tensor, size in enumerate(sizes):
        for start in range(0, size, PIECE_BYTES):
            stop = min(start + PIECE_BYTES, size)
            if stop - start > room:
                found.append([])
                room = PIECE_BYTES
            found[-1].append(Range(tensor, start, stop))
            room -= stop - start
    return found


class Stream:
    """The tensors of a state as bytes. `device` is where the group's messages must be."""

    def __init__(self, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
        self._tensors = [tensor.detach() for tensor in tensors]
        self._dense = [tensor.contiguous() for tensor in self._tensors]
        self._device = device
        self.pieces = pieces_of([tensor.nbytes for tensor in tensors])
        self.bytes = sum(tensor.nbytes for tensor in tensors)

    def begin(self, piece: Piece, start: Callable[[torch.Tensor], Any], *, receives: bool) -> Transfer:
        """Begin to send or receive a piece by `start(buffer)`, which returns torch's handle."""
        import torch

        parts = [self._dense[part.tensor].view(-1).view(torch.uint8)[part.start : part.stop] for part in piece]
        if len(parts) == 1 and parts[0].device == self._device:
            return Transfer(start(parts[0]), parts[0], [])
        if receives:
            buffer = torch.empty(sum(part.numel() for part in parts), dtype=torch.uint8, device=self._device)
        else:
            buffer = torch.cat([part.to(self._device) for part in parts])
        return Transfer(start(buffer), buffer, parts if receives else [])

    def close(self) -> None:
        """All was received: fill the tensors that are not contiguous, which were received elsewhere."""
        for tensor, dense in zip(self._tensors, self._dense, strict=True):
            if tensor.data_ptr() != dense.data_ptr():
                tensor.copy_(dense)


class Transfer(NamedTuple):
    """A piece under way."""

    handle: Any
    buffer: torch.Tensor
    parts: list[torch.Tensor]
    """Where the buffer's bytes belong, one part after the other; empty if they are there."""

    def wait(self) -> int:
        """Returns how many bytes were received. Raises what torch raises for a lost peer."""
        self.handle.wait()
        begin = 0
        for part in self.parts:
            part.copy_(self.buffer[begin : begin + part.numel()])
            begin += part.numel()
        return self.buffer.numel()


def move(
    rank: int, sources: Sources, sent: Stream | None, received: Stream | None, tell: Callable[[int], None]
) -> None:
    """Do this rank's part in healing those that `sources` names; `tell(bytes)` is called as bytes arrive.

    Raises what torch raises for a lost peer; then what was to be received is torn.
    """
    import torch.distributed as dist

    window = _Window()
    out, into = (stream.pieces if stream is not None else [] for stream in (sent, received))
    for number in range(max(len(out), len(into))):
        for receiver, of in sorted(sources.items()):
            source = of[number % len(of)]
            if rank == receiver and received is not None and number < len(into):
                begin = functools.partial(dist.irecv, src=source)
                window.add(received.begin(into[number], begin, receives=True), tell)
            elif rank == source and sent is not None and number < len(out):
                begin = functools.partial(dist.isend, dst=receiver)
                window.add(sent.begin(out[number], begin, receives=False))
    window.close()
    if received is not None:
        received.close()


def spread(rank: int, source: int, stream: Stream, tell: Callable[[int], None]) -> None:
    """As `move`, if one rank has what all others lack."""
    import torch.distributed as dist

    window = _Window()
    begin = functools.partial(dist.broadcast, src=source, async_op=True)
    for piece in stream.pieces:
        window.add(stream.begin(piece, begin, receives=rank != source), tell)
    window.close()
    if rank != source:
        stream.close()


class _Window:
    """The pieces under way, the oldest first."""

    def __init__(self) -> None:
        self._under_way: deque[tuple[Transfer, Callable[[int], None] | None]] = deque()

    def add(self, transfer: Transfer, tell: Callable[[int], None] | None = None) -> None:
        """Wait for older ones if there are too many; `tell(bytes)` when this one is through."""
        self._under_way.append((transfer, tell))
        self._wait(IN_FLIGHT)

    def close(self) -> None:
        """Wait for all."""
        self._wait(0)

    def _wait(self, most: int) -> None:
        while len(self._under_way) > most:
            transfer, tell = self._under_way.popleft()
            count = transfer.wait()
            if tell is not None:
                tell(count)
