"""A rank's part in healing: taking what it lacks from others, or giving to those that lack it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from softrun.runtime.state.contents import Description, Filling, View
from softrun.runtime.state.messages import Messages
from softrun.runtime.state.transfer import Sources, Stream, move, spread
from softrun.runtime.state.transport import CheckpointTransport, carry
from softrun.runtime.worker import is_open, refresh_progress

REPORT_S = 1.0
"""Between two lines of the log about one healing."""

_log = logging.getLogger("softrun.runtime")


class Healing:
    """How far this rank has come with taking what it lacks from others."""

    def __init__(
        self, total: int, sources: Sequence[int], on_progress: Callable[[Healing], None] | None = None
    ) -> None:
        self.total = total
        """Bytes to receive."""
        self.received = 0
        """Bytes received so far."""
        self.sources = tuple(sources)
        """The ranks that they come from."""
        self._on_progress = on_progress
        self._began = self._told = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the first byte was asked for."""
        return time.monotonic() - self._began

    @property
    def rate(self) -> float:
        """Bytes per second so far."""
        return self.received / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        return (
            f"{self.received / 1e9:.3f} of {self.total / 1e9:.3f} GB from the ranks {list(self.sources)} "
            f"in {self.seconds:.2f} s, {self.rate / 1e9:.2f} GB/s"
        )

    def add(self, count: int) -> None:
        """So many bytes have arrived."""
        self.received += count
        if is_open():
            refresh_progress()
        if self._on_progress is not None:
            self._on_progress(self)
        if self._told + REPORT_S <= time.monotonic() and self.received < self.total:
            self._told = time.monotonic()
            _log.info("healing: %s", self)


def heal(
    messages: Messages,
    sources: Sources,
    has: View,
    prepare: Callable[[Description], Filling],
    on_progress: Callable[[Healing], None] | None,
    transport: CheckpointTransport | None = None,
    step: int = 0,
) -> int:
    """Give what `has` shows to ranks that lack it, and take what this rank lacks; returns how many bytes that was.

    `sources` names each rank that lacks something, and those that it takes it from. `prepare` makes room for it.
    `transport` carries it, if one is given; `step` is what it is called there.
    """
    filling = _introduce(messages, sources, has, prepare)
    if transport is not None:
        total = sum(tensor.nbytes for tensor in filling.tensors) if filling is not None else 0
        healing = Healing(total, sources.get(messages.rank, ())[:1], on_progress)
        carry(transport, messages, sources, step, has, filling, healing.add)
        if filling is not None:
            filling.load()
            _log.info("healed by %s: %s", type(transport).__name__, healing)
        return healing.received
    kind = has.device if filling is None else filling.device
    gives = any(messages.rank in of for of in sources.values())
    sent = Stream(has.local, messages.device(kind)) if gives else None
    if filling is None:
        _move(messages, sources, sent, None, lambda _: None)
        return 0
    received = Stream(filling.tensors, messages.device(kind))
    healing = Healing(received.bytes, sources[messages.rank], on_progress)
    _move(messages, sources, sent, received, healing.add)
    filling.load()
    _log.info("healed: %s", healing)
    return healing.received


def _introduce(
    messages: Messages, sources: Sources, has: View, prepare: Callable[[Description], Filling]
) -> Filling | None:
    """The first source of each rank tells it what comes. All do so in one order: nobody waits in a circle."""
    text = b""
    for receiver, (first, *_) in sorted(sources.items()):
        if messages.rank == first:
            messages.send_text(has.text, receiver)
        elif messages.rank == receiver:
            text = messages.receive_text(first)
    return prepare(Description.model_validate_json(text)) if text else None


def _move(
    messages: Messages,
    sources: Sources,
    sent: Stream | None,
    received: Stream | None,
    tell: Callable[[int], None],
) -> None:
    givers = set().union(*sources.values())
    stream = sent or received
    if len(givers) == 1 and len(sources) == messages.size - 1 > 1 and stream is not None:
        spread(messages.rank, givers.pop(), stream, tell)
    else:
        move(messages.rank, sources, sent, received, tell)
