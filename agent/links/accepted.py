"""The links that other agents dialled, one from a node."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

from softrun.agent.errors import ProtocolError
from softrun.agent.links.connection import Connection
from softrun.agent.links.dialled import Probes
from softrun.agent.links.greetings import Greeting
from softrun.agent.links.handshake import Accepting
from softrun.agent.links.strangers import Strangers
from softrun.agent.links.wiring import Wiring
from softrun.agent.protocol.codec import decode_message
from softrun.agent.protocol.observations import Heard

MOST_LINKS = 20_000
MOST_GREETINGS = 4096  # of the last that proved themselves, none of which is taken again
NAMESAKE_S = 15.0  # a link that has been silent for longer does not keep its node's name from others


class Accepted:
    """The acceptor's end of links. `has_other`: whether this agent has dialled a link to a node as well."""

    def __init__(self, wiring: Wiring, probes: Probes, strangers: Strangers, has_other: Callable[[str], bool]) -> None:
        self._wiring = wiring
        self._has_other = has_other
        self._probes = probes
        self._strangers = strangers
        self._links: dict[str, Connection] = {}
        self._nonces: dict[str, None] = {}  # of greetings that proved themselves, the oldest first
        # A node that looks for the job, and has a link already, may drop the new one as soon as it sees that. So it
        # takes the old one's place only when it is used.
        self._unused: dict[str, Connection] = {}

    def welcome(self, sock: socket.socket, source: str, divert: Callable[[Connection], None] | None) -> None:
        """Take a connection that was accepted. `divert` takes over one that does not begin as a greeting does."""
        nonce = secrets.token_hex(32) if self._wiring.identity.secret is not None else ""
        accepting = Accepting(self._wiring.identity, nonce)

        def heard(connection: Connection, line: bytes) -> None:
            if accepting.greeting is None:
                self._wiring.send(connection, accepting.greeted(line, self._is_namesake))
                self._greeted(connection, accepting)
            else:
                accepting.proved(line)
                self._up(connection, accepting)

        connection = self._wiring.connection(heard, self._closed)
        connection.divert, connection.source = divert, source
        self._strangers.add(connection, source, self._wiring.clock())
        try:
            connection.take(sock)
        except OSError:
            self._strangers.forget(connection)
            connection.close()
            raise
        connection.look()  # its greeting mostly is here already

    def link(self, node: str) -> Connection | None:
        """Return the link from `node`, if there is one."""
        return self._links.get(node)

    def links(self) -> list[Connection]:
        """Return all that are up."""
        return list(self._links.values())

    def close(self, node: str) -> None:
        """Close the link from `node`, if there is one. It learns of it, and dials again if it needs it."""
        for links in (self._links, self._unused):
            connection = links.pop(node, None)
            if connection is not None:
                connection.close()

    def _greeted(self, connection: Connection, accepting: Accepting) -> None:
        greeting = accepting.greeting
        assert greeting is not None
        connection.node = greeting.node
        connection.address = (greeting.host, greeting.port)
        if accepting.fault and not accepting.waits:
            raise ProtocolError(accepting.fault)
        is_itself = greeting.node == self._wiring.identity.node and not accepting.fault
        if greeting.probe or is_itself:
            self._strangers.forget(connection)
            connection.close()  # it wanted the answer only
        elif accepting.waits:
            self._count(greeting.nonce)
            self._strangers.greeted(connection)
        else:
            self._up(connection, accepting)

    def _count(self, nonce: str) -> None:
        """Raise ProtocolError if a greeting with this nonce came before: somebody has recorded it."""
        if nonce in self._nonces:
            raise ProtocolError("its greeting has come before")
        self._nonces[nonce] = None
        if len(self._nonces) > MOST_GREETINGS:
            del self._nonces[next(iter(self._nonces))]

    def _up(self, connection: Connection, accepting: Accepting) -> None:
        greeting = accepting.greeting
        assert greeting is not None
        node = greeting.node
        if greeting.node == self._wiring.identity.node or self._is_namesake(greeting):
            raise ProtocolError("another link in this node's name has come up meanwhile")
        if node not in self._links and len(self._links) >= MOST_LINKS:
            raise ProtocolError(f"there are {MOST_LINKS} links already")
        self._strangers.forget(connection)
        connection.up = True
        connection.heard_at = self._wiring.clock()
        connection.sealing = accepting.sealing
        connection.on_line = self._said
        if greeting.to == "" and node in self._links:
            before, self._unused[node] = self._unused.get(node), connection
            if before is not None:
                before.close()
        else:
            self._put(connection)

    def _put(self, connection: Connection) -> None:
        """Make it the link from its node."""
        node = connection.node
        for links in (self._links, self._unused):
            before = links.pop(node, None)
            if before is not None and before is not connection:
                before.close()
        self._links[node] = connection

    def _said(self, connection: Connection, line: bytes) -> None:
        message = decode_message(connection.unseal(line))
        connection.heard_at = self._wiring.clock()
        if self._unused.get(connection.node) is connection:
            self._put(connection)
        self._wiring.observe(Heard(connection.node, message))

    def _closed(self, connection: Connection, _code: int) -> None:
        self._strangers.forget(connection)
        node = connection.node
        if self._unused.get(node) is connection:
            del self._unused[node]
        elif connection.up and self._links.get(node) is connection:
            del self._links[node]
            if node in self._unused:
                self._put(self._unused[node])
            elif not self._has_other(node):  # else the end of that one will tell
                self._probes.look(node, connection.address)

    def _is_namesake(self, greeting: Greeting) -> bool:
        """Whether an agent that listens elsewhere has this node's name, and still speaks."""
        link = self._links.get(greeting.node)
        return (
            link is not None
            and link.address != (greeting.host, greeting.port)
            and self._wiring.clock() < link.heard_at + NAMESAKE_S
        )
