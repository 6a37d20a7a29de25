"""One socket of a link: its lines, its unfinished input and output, and the bounds of both."""

from __future__ import annotations

import errno
import selectors
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from softrun.agent.errors import ProtocolError
from softrun.agent.links.names import Place
from softrun.agent.links.quiet_log import QuietLog, escaped
from softrun.agent.links.sealing import Sealing
from softrun.agent.protocol.codec import MAX_LINE

FIRST_BYTES = 4096  # the most that an unknown peer can make this agent keep
MAX_UNSENT = 2 * MAX_LINE


class Connection:
    """A connection that is being made, or is there, until it is closed or lost.

    `on_line` gets each line, and may raise ProtocolError to lose the connection. `on_close` gets the errno with which
    it was lost, 0 at a clean end; not if this end closes it. No exception of theirs gets any further.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        log: QuietLog,
        among: set[Connection],
        on_line: Callable[[Connection, bytes], None],
        on_close: Callable[[Connection, int], None],
    ) -> None:
        self.on_line = on_line
        self.on_close = on_close
        self.divert: Callable[[Connection], None] | None = None  # takes over what does not begin as JSON does
        self.source = ""  # whence it came, if it was accepted
        self.node = ""  # the peer, once it says who it is
        self.address: tuple[str, int] = ("", 0)  # of the peer's listener
        self.up = False  # both ends have introduced themselves
        self.heard_at = 0.0  # when a message arrived last
        self.sealing: Sealing | None = None
        self.closed = False
        self._selector = selector
        self._log = log
        self._among = among
        self._sock: socket.socket | None = None
        self._targets: list[Place] = []  # to try if this one fails
        self._connecting = False
        self._failed_with = 0
        self._received = bytearray()
        self._unsent = bytearray()
        among.add(self)

    @property
    def peer(self) -> str:
        """The peer's name for the log: its node, or else its address."""
        if self.node:
            return escaped(self.node)
        return escaped(f"{self.address[0]}:{self.address[1]}") if self.address[1] else "an unknown peer"

    @property
    def connecting(self) -> bool:
        """Whether it is not known yet whether anybody accepts it."""
        return self._sock is None or self._connecting

    # --- how it begins

    def take(self, sock: socket.socket) -> None:
        """Talk on a socket that was accepted."""
        self._add(sock, selectors.EVENT_READ)

    def connect(self, targets: Sequence[Place]) -> None:
        """Connect to the first of these that can be reached. Raises OSError if that fails at once for all."""
        self._targets = list(targets)
        if not self._connect_next():
            raise OSError(self._failed_with or errno.EHOSTUNREACH, "no connection")

    def _connect_next(self) -> bool:
        while self._targets:
            family, address = self._targets.pop(0)
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                self._note_failure(error.errno or errno.EIO)
                continue
            try:
                sock.setblocking(False)
                code = sock.connect_ex(address)
                if code in (0, errno.EINPROGRESS):
                    self._add(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
                    self._connecting = True
                    return True
            except (OSError, ValueError, TypeError, OverflowError):
                code = errno.EINVAL  # an address that is none, or a port that is none
            sock.close()
            self._note_failure(code)
        return False

    def _note_failure(self, code: int) -> None:
        """Only if all refused the connection, it was refused."""
        if self._failed_with in (0, errno.ECONNREFUSED):
            self._failed_with = code

    def _add(self, sock: socket.socket, events: int) -> None:
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(sock, events, self.ready)
        self._sock = sock

    # --- how it ends

    def close(self) -> None:
        """End it; nobody hears of that here."""
        sock = self.release()
        if sock is not None:
            sock.close()

    def release(self) -> socket.socket | None:
        """End it, but leave the socket to the caller."""
        self.closed = True
        self._among.discard(self)
        sock, self._sock = self._sock, None
        if sock is not None:
            self._selector.unregister(sock)
        return sock

    def lose(self, code: int) -> None:
        """End it because of an error, or because the other end has closed it."""
        if self.closed:
            return
        self.close()
        try:
            self.on_close(self, code)
        except Exception as error:
            self._log.fault("the end of the link to %s: %s: %s", self.peer, type(error).__name__, error)

    def flush(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` until everything is sent. For the end of the agent only."""
        if self._sock is not None and self._unsent and self.up:
            with suppress(OSError):  # the peer will find out by itself
                self._sock.settimeout(timeout_s)
                self._sock.sendall(self._unsent)

    @property
    def waits_to_send(self) -> bool:
        """Whether the peer has not taken everything yet."""
        return bool(self._unsent)

    # --- what goes over it

    def put(self, line: bytes) -> None:
        """Take one line to send: `push` sends it."""
        if not self.closed:
            self._unsent += line if self.sealing is None else self.sealing.seal(line)
            self._unsent += b"\n"

    def push(self) -> None:
        """Send what was put, now or as soon as the peer takes it."""
        if self._sock is not None and not self._connecting:
            self._flush()

    def unseal(self, line: bytes) -> bytes:
        """Return what is in a line of a peer that is known. Raises ProtocolError if it is not the peer's next one."""
        return line if self.sealing is None else self.sealing.open(line)

    def look(self) -> None:
        """Read what may have arrived."""
        self.ready(selectors.EVENT_READ)

    def ready(self, mask: int) -> None:
        """Read or write; the selector's callback."""
        if self.closed:
            return  # by an earlier callback of the same round
        try:
            if mask & selectors.EVENT_WRITE:
                self._writable()
            if mask & selectors.EVENT_READ and not self.closed and not self._connecting:
                self._receive()
        except ProtocolError as error:
            self._log.warn("link to %s closed: %s", self.peer, error, source=self.source)
            self.lose(errno.EPROTO)
        except Exception as error:
            self._log.fault("link to %s closed: %s: %s", self.peer, type(error).__name__, error, source=self.source)
            self.lose(errno.EIO)

    def _writable(self) -> None:
        assert self._sock is not None
        if self._connecting:
            self._connecting = False
            code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._note_failure(code)
                sock, self._sock = self._sock, None
                self._selector.unregister(sock)
                sock.close()
                if not self._connect_next():
                    self.lose(self._failed_with)
                return
        self._flush()

    def _receive(self) -> None:
        assert self._sock is not None
        try:
            if self.divert is not None:
                first = self._sock.recv(1, socket.MSG_PEEK)
                if first not in (b"", b"{"):
                    self.divert(self)
                    return
            data = self._sock.recv(1 << 16 if self.up else FIRST_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.lose(error.errno or errno.EIO)
            return
        if not data:
            self.lose(0)
            return
        self.divert = None
        head, newline, rest = data.rpartition(b"\n")
        if newline:
            lines = (self._received + head).split(b"\n")
            self._received = bytearray(rest)
            for line in lines:
                if self.closed:
                    return
                self._check_length(line)
                self.on_line(self, bytes(line))
        else:
            self._received += data
        self._check_length(self._received)

    def _check_length(self, line: bytes | bytearray) -> None:
        most = MAX_LINE if self.up else FIRST_BYTES
        if len(line) > most:
            raise ProtocolError(f"a line of more than {most} bytes")

    def _flush(self) -> None:
        assert self._sock is not None
        try:
            while self._unsent:
                sent = self._sock.send(self._unsent)
                del self._unsent[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._unsent.clear()  # reading will tell why
        if len(self._unsent) > MAX_UNSENT:
            self._log.warn("link to %s closed: it takes nothing any more", self.peer)
            self.lose(errno.ENOBUFS)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        key = self._selector.get_key(self._sock)
        if key.events != wanted:
            self._selector.modify(self._sock, wanted, key.data)
