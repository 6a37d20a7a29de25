"""Links: connections between agents, on which a member talks to its leader.

The member dials, the leader accepts. Every line is one JSON document, at most `MAX_LINE` bytes:

    dialler  → {"version": …, "job": id, "node": its own, "to": the node it wants, "host": …, "port": of its listener}
    acceptor → {"version": …, "node": its own}          only if job and node are right; else it hangs up
    both     → messages (`softrun.agent.protocol.codec`), in any order

The kernel closes the sockets of a process that dies, so a link is also the quickest proof of death. A link may break
for other reasons, too, so this agent then dials the peer's listener once more. If it is refused, or somebody else
answers, the process is gone. If the peer answers as before, only the link was lost. Silence for `PROBE_S` proves
nothing, and is left to the missed beats.

Nothing here blocks, unless a node's address is a name and the name service is slow: the sockets are non-blocking and
belong to the driver's selector.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from softrun.agent.errors import ProtocolError
from softrun.agent.protocol.codec import PROTOCOL_VERSION, decode_message, encode_message
from softrun.agent.protocol.model import Member, Message
from softrun.agent.protocol.observations import Heard, LinkDown, LinkUp, Observation

MAX_LINE = 1 << 20
MAX_UNSENT = 8 << 20
PROBE_S = 5.0
ACCEPT_AGAIN_S = 0.1  # how long to wait after the descriptors have run out
WARNINGS = 10  # the most in `WARNINGS_S` seconds: anybody who reaches the port can make a link fail
WARNINGS_S = 60.0
_PROBES = 20  # a dying process may still accept for a moment; each try takes one loop of the driver

logger = logging.getLogger("softrun.links")


@dataclass(eq=False)
class _Connection:
    """One socket with its unfinished input and output."""

    sock: socket.socket
    on_line: Callable[[_Connection, bytes], None]
    on_close: Callable[[_Connection, int], None]  # with the errno, 0 at a clean end
    node: str = ""  # the peer, once it is known
    address: tuple[str, int] = ("", 0)  # of the peer's listener
    up: bool = False  # both ends have introduced themselves
    connecting: bool = False
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)


class Links:
    """All links of one agent. `observe` is called with what happens on them."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        job: str,
        node: str,
        host: str,
        observe: Callable[[Observation], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._selector = selector
        self._job = job
        self._node = node
        self._host = host
        self._observe = observe
        self._clock = clock
        self._probes: dict[_Connection, float] = {}  # until when they are waited for
        self._accept_at: float | None = None  # when there may be descriptors again
        self._warned_at: deque[float] = deque(maxlen=WARNINGS)
        self._dialled: dict[str, _Connection] = {}
        self._accepted: dict[str, _Connection] = {}
        self._open: set[_Connection] = set()
        six = ":" in host
        family = socket.AF_INET6 if six else socket.AF_INET
        self._listener = socket.create_server(("", 0), family=family, dualstack_ipv6=six, backlog=4096)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    # --- what the driver asks for

    def dial(self, member: Member) -> None:
        """Connect to the agent of `member`; LinkUp or LinkDown follows."""
        self.hang_up(member.node)
        connection = self._connect((member.host, member.port), self._dialled_line, self._dialled_closed)
        connection.node = member.node
        self._dialled[member.node] = connection
        self._greet(connection)

    def hang_up(self, node: str) -> None:
        """Close the link that was dialled to `node`, if there is one. No observation follows."""
        connection = self._dialled.pop(node, None)
        if connection is not None:
            self._drop(connection)

    def say(self, node: str | None, message: Message) -> None:
        """Send on the link to `node`, or with None on every accepted link. A link that is not up takes nothing."""
        line = encode_message(message) + b"\n"
        if node is None:
            targets = list(self._accepted.values())
        else:
            dialled = self._dialled.get(node)
            target = dialled if dialled is not None and dialled.up else self._accepted.get(node)
            targets = [target] if target is not None else []
        for connection in targets:
            self._send(connection, line)

    def sweep(self) -> None:
        """Do what is due. Call it whenever the loop wakes."""
        now = self._clock()
        for connection in [probe for probe, until in self._probes.items() if now >= until]:
            self._lost(connection, errno.ETIMEDOUT)
        if self._accept_at is not None and now >= self._accept_at:
            self._accept_at = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close(self, flush_s: float = 1.0) -> None:
        """Send what is unsent, then close everything."""
        for connection in list(self._open):
            if connection.unsent and connection.up:
                try:
                    connection.sock.settimeout(flush_s)
                    connection.sock.sendall(connection.unsent)
                except OSError:
                    pass  # the peer will find out by itself
            self._drop(connection)
        if self._accept_at is None:
            self._selector.unregister(self._listener)
        self._listener.close()

    # --- sockets

    def _accept(self, _mask: int) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._warn("a link could not be accepted: %s", error)
                # Out of descriptors: the listener would stay readable and keep the loop busy.
                self._selector.unregister(self._listener)
                self._accept_at = self._clock() + ACCEPT_AGAIN_S
                return
            self._add(_Connection(sock, self._accepted_line, self._accepted_closed))

    def _connect(
        self,
        address: tuple[str, int],
        on_line: Callable[[_Connection, bytes], None],
        on_close: Callable[[_Connection, int], None],
    ) -> _Connection:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        connection = _Connection(sock, on_line, on_close, address=address, connecting=True)
        self._add(connection)
        # The outcome is reported through the selector, even a failure that is known at once.
        with suppress(socket.gaierror):
            sock.connect_ex(address)
        return connection

    def _add(self, connection: _Connection) -> None:
        connection.sock.setblocking(False)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.add(connection)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.connecting else 0)
        self._selector.register(connection.sock, events, lambda mask: self._ready(connection, mask))

    def _drop(self, connection: _Connection) -> None:
        if connection in self._open:
            self._open.discard(connection)
            self._probes.pop(connection, None)
            self._selector.unregister(connection.sock)
            connection.sock.close()

    def _lost(self, connection: _Connection, code: int) -> None:
        if connection in self._open:
            self._drop(connection)
            connection.on_close(connection, code)

    def _ready(self, connection: _Connection, mask: int) -> None:
        if connection not in self._open:
            return  # dropped by an earlier callback of the same round
        if mask & selectors.EVENT_WRITE:
            if connection.connecting:
                connection.connecting = False
                code = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    self._lost(connection, code)
                    return
            self._flush(connection)
        if mask & selectors.EVENT_READ and connection in self._open:
            self._receive(connection)

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(connection, error.errno or errno.EIO)
            return
        if not data:
            self._lost(connection, 0)
            return
        connection.received += data
        *lines, rest = bytes(connection.received).split(b"\n")
        connection.received = bytearray(rest)
        try:
            if len(rest) > MAX_LINE:
                raise ProtocolError(f"a line of more than {MAX_LINE} bytes")
            for line in lines:
                if connection in self._open:
                    connection.on_line(connection, line)
        except ProtocolError as error:
            self._warn("link to %s closed: %s", connection.node or "an unknown peer", error)
            self._lost(connection, errno.EPROTO)

    def _send(self, connection: _Connection, line: bytes) -> None:
        connection.unsent += line
        if not connection.connecting:
            self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        try:
            while connection.unsent:
                sent = connection.sock.send(connection.unsent)
                del connection.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            connection.unsent.clear()  # reading will tell why
        if len(connection.unsent) > MAX_UNSENT:
            self._warn("link to %s closed: it takes nothing any more", connection.node)
            self._lost(connection, errno.ENOBUFS)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        key = self._selector.get_key(connection.sock)
        if key.events != wanted:
            self._selector.modify(connection.sock, wanted, key.data)

    def _warn(self, text: str, *what: object) -> None:
        now = self._clock()
        if len(self._warned_at) < WARNINGS or now - self._warned_at[0] >= WARNINGS_S:
            self._warned_at.append(now)
            logger.warning(text, *what)

    # --- the dialler's end

    def _greet(self, connection: _Connection) -> None:
        self._send(connection, _line(self._greeting(connection.node, probe=False)))

    def _greeting(self, to: str, probe: bool) -> _Greeting:
        return _Greeting(
            version=PROTOCOL_VERSION,
            job=self._job,
            node=self._node,
            to=to,
            host=self._host,
            port=self.port,
            probe=probe,
        )

    def _dialled_line(self, connection: _Connection, line: bytes) -> None:
        if connection.up:
            self._observe(Heard(connection.node, decode_message(line)))
            return
        answer = _read(_Answer, line)
        if answer.node != connection.node:
            raise ProtocolError(f"somebody else answered: {line[:80]!r}")
        _check_version(answer)
        connection.up = True
        self._observe(LinkUp(connection.node))

    def _dialled_closed(self, connection: _Connection, _code: int) -> None:
        if self._dialled.get(connection.node) is connection:
            del self._dialled[connection.node]
        if connection.up:
            self._probe(connection.node, connection.address)
        else:
            # It was never up, so its failure proves nothing: the fault may be here.
            self._observe(LinkDown(connection.node, gone=False))

    # --- the acceptor's end

    def _accepted_line(self, connection: _Connection, line: bytes) -> None:
        if connection.up:
            self._observe(Heard(connection.node, decode_message(line)))
            return
        greeting = _read(_Greeting, line)
        if greeting.job != self._job or greeting.to != self._node:
            raise ProtocolError(f"it wants {greeting.to!r} of job {greeting.job!r}")
        connection.node = greeting.node
        connection.address = (greeting.host, greeting.port)
        self._send(connection, _line(_Answer(version=PROTOCOL_VERSION, node=self._node)))
        if greeting.probe:
            return
        _check_version(greeting)  # after the answer, which tells the other end why
        connection.up = True
        before = self._accepted.pop(connection.node, None)
        if before is not None:
            self._drop(before)
        self._accepted[connection.node] = connection

    def _accepted_closed(self, connection: _Connection, _code: int) -> None:
        if connection.up and self._accepted.get(connection.node) is connection:
            del self._accepted[connection.node]
            self._probe(connection.node, connection.address)

    # --- is it gone, or only the link?

    def _probe(self, node: str, address: tuple[str, int], tries: int = _PROBES) -> None:
        def answered(connection: _Connection, line: bytes) -> None:
            alive = _read(_Answer, line).node == node
            self._drop(connection)
            self._observe(LinkDown(node, gone=not alive))

        def closed(_connection: _Connection, code: int) -> None:
            if code == errno.ECONNREFUSED:
                self._observe(LinkDown(node, gone=True))
            elif code in (0, errno.ECONNRESET) and tries > 1:
                self._probe(node, address, tries - 1)
            else:
                self._observe(LinkDown(node, gone=False))

        connection = self._connect(address, answered, closed)
        connection.node = node
        self._probes[connection] = self._clock() + PROBE_S
        self._send(connection, _line(self._greeting(node, probe=True)))


class _Greeting(BaseModel):
    version: int = 0
    job: str
    node: str
    to: str
    host: str
    port: int = Field(ge=0, le=65535)
    probe: bool = False


class _Answer(BaseModel):
    version: int = 0
    node: str


_Document = TypeVar("_Document", bound=BaseModel)


def _check_version(said: _Greeting | _Answer) -> None:
    if said.version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"it speaks protocol version {said.version}, this agent {PROTOCOL_VERSION}: install the same release of "
            "softrun on every node"
        )


def _line(document: BaseModel) -> bytes:
    return document.model_dump_json().encode() + b"\n"


def _read(kind: type[_Document], line: bytes) -> _Document:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        raise ProtocolError(f"not a greeting: {line[:80]!r}") from error
