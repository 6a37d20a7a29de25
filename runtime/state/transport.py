"""A transport of others for what heals a rank, in the shape of torchft's class of this name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from softrun.runtime.state.contents import Filling, View
from softrun.runtime.state.messages import Messages
from softrun.runtime.state.transfer import Sources

if TYPE_CHECKING:
    import torch

TIMEOUT = timedelta(minutes=5)
"""What a transport is given for one checkpoint."""


class CheckpointTransport(ABC):
    """Carries tensors from ranks that have them to ranks that lack them; `State.heal_by` makes a State use it.

    The names and the meaning are those of torchft's `CheckpointTransport`, so its transports fit. softrun itself needs
    none: it moves tensors in the world's group, in place, from several ranks at once.
    """

    @abstractmethod
    def metadata(self) -> str:
        """Return what a receiver must know to reach this rank, such as an address."""

    @abstractmethod
    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: dict[str, torch.Tensor], timeout: timedelta
    ) -> None:
        """Send the tensors to these ranks, or have them ready until `disallow_checkpoint`: they stay as they are."""

    @abstractmethod
    def disallow_checkpoint(self) -> None:
        """All have received theirs: the tensors are about to change."""

    @abstractmethod
    def recv_checkpoint(
        self, src_rank: int, metadata: str, step: int, timeout: timedelta
    ) -> Mapping[str, torch.Tensor]:
        """Return the tensors of that rank, by their names. `metadata` is the sender's."""

    def shutdown(self, wait: bool = True) -> None:  # noqa: B027 - most have nothing to do
        """No more is sent or received. softrun does not call it: it is for whoever made the transport."""


def carry(
    transport: Any,
    messages: Messages,
    sources: Sources,
    step: int,
    has: View,
    filling: Filling | None,
    tell: Callable[[int], None],
) -> None:
    """Give and take by `transport`, each rank from the first of its sources; `tell(bytes)` is called as they arrive.

    Raises ValueError for a tensor that is not what was described, and what the transport and torch raise for a lost
    peer.
    """
    reach = [text.decode() for text in messages.exchange(transport.metadata().encode())]
    receivers = [receiver for receiver, (first, *_) in sorted(sources.items()) if first == messages.rank]
    try:
        if receivers:
            given = dict(zip(has.specs, has.local, strict=True))
            transport.send_checkpoint(receivers, step, given, TIMEOUT)
        if filling is not None:
            source = sources[messages.rank][0]
            received = transport.recv_checkpoint(source, reach[source], step, TIMEOUT)
            for name, to in zip(filling.given, filling.tensors, strict=True):
                _take(name, received, to)
                tell(to.nbytes)
        messages.gather([step])
    finally:
        if receivers:
            transport.disallow_checkpoint()


def _take(name: str, received: Mapping[str, torch.Tensor], to: torch.Tensor) -> None:
    tensor = received.get(name)
    if tensor is None or (tensor.shape, tensor.dtype) != (to.shape, to.dtype):
        found = "nothing" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"
        raise ValueError(f"the transport brought {found} for {name}, which is {to.dtype}{list(to.shape)}")
    to.copy_(tensor)
