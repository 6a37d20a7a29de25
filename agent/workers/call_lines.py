"""The agent's ends of the lines on which its workers call live_workers (`softrun.runtime.channel.line`)."""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Callable, Sequence

from softrun.agent.protocol.effects import Caller
from softrun.agent.protocol.observations import Called, Observation
from softrun.agent.protocol.printable import printable
from softrun.agent.workers.spawner import Key
from softrun.runtime.calls import MOST_BYTES, Reply, pack_reply, read_call
from softrun.runtime.channel.directory import ChannelError
from softrun.runtime.channel.line import is_of_this_user

ONLY_CALLS = "only calls"
"""What the handler of a line returns: nothing but a call has come."""

logger = logging.getLogger("softrun")


class CallLines:
    """One line for each worker, by its local rank and launch. `observe` is called with each call."""

    def __init__(self, selector: selectors.BaseSelector, observe: Callable[[Observation], None]) -> None:
        self._selector = selector
        self._observe = observe
        self._listeners: dict[Key, socket.socket] = {}
        self._lines: dict[Key, socket.socket] = {}
        self._warned = False
        self._packet = bytearray(MOST_BYTES)  # kept: to get so much room costs five times what a packet does

    def open(self, key: Key, listen: Callable[[], socket.socket]) -> None:
        """Take the worker's calls from now on. A node on which that cannot be done trains without them."""
        try:
            listener = listen()
        except ChannelError as error:
            if not self._warned:
                logger.warning("workers of this node cannot call live_workers: %s", error)
            self._warned = True
            return
        self._listeners[key] = listener
        self._selector.register(listener, selectors.EVENT_READ, lambda _mask: self._connected(key))

    def reply(self, callers: Sequence[Caller], reply: Reply) -> None:
        """Answer these workers. One that takes no answer has ended, or is about to."""
        packets = pack_reply(reply, *(caller.number for caller in callers))
        for (local_rank, launch, _), packet in zip(callers, packets, strict=True):
            line = self._lines.get((local_rank, launch))
            if line is not None:
                try:
                    line.send(packet)
                except OSError:
                    self._hang_up((local_rank, launch))

    def close(self, key: Key) -> None:
        """The worker has ended."""
        self._hang_up(key)
        listener = self._listeners.pop(key, None)
        if listener is not None:
            self._selector.unregister(listener)
            listener.close()

    def _connected(self, key: Key) -> None:
        try:
            line, _ = self._listeners[key].accept()
        except OSError:
            return
        if not is_of_this_user(line):
            line.close()
            return
        self._hang_up(key)  # a worker that has closed its channel, and opened it again
        line.setblocking(False)
        self._lines[key] = line
        self._selector.register(line, selectors.EVENT_READ, lambda _mask: self._called(key, line))

    def _called(self, key: Key, line: socket.socket) -> str | None:
        try:
            size = line.recv_into(self._packet)  # one: a worker has one call open, and is called again for more
        except BlockingIOError:
            return ONLY_CALLS
        except OSError:
            size = 0
        try:
            call = read_call(self._packet[:size]) if size else None
        except ValueError as error:
            logger.warning("worker %d: %s", key[0], printable(str(error), 200))
            call = None
        if call is None:
            self._hang_up(key)
            return None
        self._observe(Called(*key, call))
        return ONLY_CALLS

    def _hang_up(self, key: Key) -> None:
        line = self._lines.pop(key, None)
        if line is not None:
            self._selector.unregister(line)
            line.close()
