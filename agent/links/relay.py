"""Relays: connections to an endpoint that are meant for the workers' store, passed on to it byte by byte.

With a static rendezvous the user names one port, at which the agents find the job and the workers their store. The
agent listens there, and hands on what does not begin as a greeting does.

Anybody can open a connection. The store answers a worker at once, so whoever it has not answered has `ANSWER_S`, and
less if there are `MOST_RELAYS` and another one comes: then the oldest of those goes.
"""

from __future__ import annotations

import errno
import selectors
import socket
from collections.abc import Callable
from contextlib import suppress

from softrun.agent.links.quiet_log import QuietLog

MOST_RELAYS = 1024
ANSWER_S = 5.0
MOST_BYTES = 1 << 16  # that wait in one direction; until they are taken, no more is read


class Relays:
    """The relays of one agent. `port` is where the store listens, on this machine; None: what comes is closed."""

    def __init__(self, selector: selectors.BaseSelector, log: QuietLog, clock: Callable[[], float]) -> None:
        self._selector = selector
        self._log = log
        self._clock = clock
        self._relays: set[_Relay] = set()
        self._unanswered: dict[_Relay, float] = {}  # and since when, the oldest first
        self.port: int | None = None

    def __len__(self) -> int:
        return len(self._relays)

    def take(self, sock: socket.socket) -> None:
        """Pass on all that comes on this socket, and what comes back."""
        if self.port is not None and len(self._relays) >= MOST_RELAYS and self._unanswered:
            self._turn_out(f"there are {MOST_RELAYS}, and another one comes")
        if self.port is None or len(self._relays) >= MOST_RELAYS:
            self._log.warn(
                "a connection that is not an agent's was closed: %s",
                "nothing else is served here" if self.port is None else f"{MOST_RELAYS} others are passed on already",
            )
            sock.close()
            return
        try:
            store = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        except OSError as error:
            self._log.warn("a worker's connection to its store could not be passed on: %s", error)
            sock.close()
            return
        relay = _Relay(self, self._selector, sock, store, self.port)
        self._relays.add(relay)
        self._unanswered[relay] = self._clock()

    def answered(self, relay: _Relay) -> None:
        """Note that the store has answered: it is a worker's."""
        self._unanswered.pop(relay, None)

    def deadline(self) -> float | None:
        """When `sweep` has something to do."""
        oldest = next(iter(self._unanswered.values()), None)
        return None if oldest is None else oldest + ANSWER_S

    def sweep(self, now: float) -> None:
        """End those that the store has not answered in time."""
        while (until := self.deadline()) is not None and until <= now:
            self._turn_out(f"the store has not answered it in {ANSWER_S:g} s")

    def _turn_out(self, why: str) -> None:
        self._log.warn("a connection that was passed on to the workers' store was closed: %s", why)
        next(iter(self._unanswered)).close()

    def drop(self, relay: _Relay, error: OSError | None) -> None:
        """Note that a relay has ended."""
        self._relays.discard(relay)
        self._unanswered.pop(relay, None)
        if error is not None and error.errno == errno.ECONNREFUSED:
            self._log.warn("a worker's connection to its store could not be passed on: %s", error)

    def fault(self, error: Exception) -> None:
        """Log what nobody has foreseen."""
        self._log.fault("a worker's connection to its store was closed: %s: %s", type(error).__name__, error)

    def close(self) -> None:
        """End all relays."""
        for relay in list(self._relays):
            relay.close()


class _Relay:
    """Two sockets, and what waits to be written to either."""

    def __init__(
        self, relays: Relays, selector: selectors.BaseSelector, worker: socket.socket, store: socket.socket, port: int
    ) -> None:
        self._relays = relays
        self._selector = selector
        self._store = store
        self._peers = {worker: store, store: worker}
        self._waiting = {worker: bytearray(), store: bytearray()}  # to be written to it
        self._ended: set[socket.socket] = set()  # nothing more comes from it
        self._shut: set[socket.socket] = set()  # nothing more goes to it
        for sock in self._peers:
            sock.setblocking(False)
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = store.connect_ex(("127.0.0.1", port))
        if code not in (0, errno.EINPROGRESS):
            self._selector.register(store, selectors.EVENT_WRITE, lambda _mask: self.close())
            return
        self._selector.register(store, selectors.EVENT_WRITE, lambda _mask: self._connected(store))

    def close(self, error: OSError | None = None) -> None:
        """End it in both directions."""
        for sock in self._peers:
            if sock in self._selector.get_map():
                self._selector.unregister(sock)
            sock.close()
        self._relays.drop(self, error)

    def _connected(self, store: socket.socket) -> None:
        if store.fileno() < 0:
            return
        code = store.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.close(OSError(code, "the store does not listen"))
            return
        self._wait()

    def _ready(self, sock: socket.socket, mask: int) -> None:
        if sock.fileno() < 0:
            return  # closed by an earlier callback of the same round
        try:
            if mask & selectors.EVENT_WRITE:
                self._write(sock)
            if mask & selectors.EVENT_READ:
                self._read(sock)
            if self._shut == set(self._peers):
                self.close()
            else:
                self._wait()
        except OSError as error:
            self.close(error)
        except Exception as error:
            self.close()
            self._relays.fault(error)

    def _read(self, sock: socket.socket) -> None:
        peer = self._peers[sock]
        try:
            data = sock.recv(MOST_BYTES - len(self._waiting[peer]))
        except (BlockingIOError, InterruptedError):
            return
        if data:
            self._waiting[peer] += data
            if sock is self._store:
                self._relays.answered(self)
        else:
            self._ended.add(sock)
        self._write(peer)

    def _write(self, sock: socket.socket) -> None:
        waiting = self._waiting[sock]
        with suppress(BlockingIOError, InterruptedError):
            while waiting:
                del waiting[: sock.send(waiting)]
        if not waiting and self._peers[sock] in self._ended and sock not in self._shut:
            self._shut.add(sock)
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)

    def _wait(self) -> None:
        """Tell the selector what each end waits for."""
        for sock, peer in self._peers.items():
            wanted = 0
            if sock not in self._ended and len(self._waiting[peer]) < MOST_BYTES:
                wanted |= selectors.EVENT_READ
            if self._waiting[sock]:
                wanted |= selectors.EVENT_WRITE
            key = self._selector.get_map().get(sock)
            if key is not None and not wanted:
                self._selector.unregister(sock)
            elif wanted:
                register = self._selector.register if key is None else self._selector.modify
                register(sock, wanted, lambda mask, sock=sock: self._ready(sock, mask))
