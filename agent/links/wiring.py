"""What the parts of an agent's links share: the loop, who this agent is, and the connections that are open."""

from __future__ import annotations

import errno
import secrets
import selectors
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from softrun.agent.links.connection import Connection
from softrun.agent.links.handshake import Dialling, Identity
from softrun.agent.links.names import Names, Place, is_loopback
from softrun.agent.links.quiet_log import QuietLog
from softrun.agent.protocol.observations import Observation

OnLine = Callable[[Connection, bytes], None]
OnClose = Callable[[Connection, int], None]


@dataclass
class Wiring:
    """The shared things. `send` is the one way by which a line leaves this agent."""

    selector: selectors.BaseSelector
    identity: Identity
    observe: Callable[[Observation], None]
    send: Callable[[Connection, bytes], None]
    clock: Callable[[], float]
    log: QuietLog
    names: Names
    known: str = ""
    """The names of the records that this agent knows, the newest first, with blanks between them."""
    open: set[Connection] = field(default_factory=set)
    soon: deque[Callable[[], None]] = field(default_factory=deque)
    """What the next sweep does: a failure that is known at once is told as late as others, or it would be retried
    without the loop ever waiting."""

    def connection(self, on_line: OnLine, on_close: OnClose) -> Connection:
        """Return a new connection, which waits for a socket."""
        return Connection(self.selector, self.log, self.open, on_line, on_close)

    def connect(self, address: tuple[str, int], on_line: OnLine, on_close: OnClose) -> Connection:
        """Return a connection to an address. What it sends before it stands waits; a failure is told later."""
        connection = self.connection(on_line, on_close)
        connection.address = address
        self.names.look_up(address[0], address[1], partial(self.connect_to, connection))
        return connection

    def connect_to(self, connection: Connection, places: Sequence[Place]) -> None:
        """Connect to the first of these places that can be reached. Without any, the connection is lost, later."""
        if connection.closed:
            return
        try:
            connection.connect(places)
        except OSError as error:
            self.soon.append(partial(connection.lose, error.errno or errno.EIO))

    def leads_to_its_host(self, host: str) -> bool:
        """Whether `host` is the host of a peer also as seen from here: a loopback address is each machine's own."""
        return not is_loopback(host) or is_loopback(self.identity.host)

    def greet(self, connection: Connection, to: str, probe: bool = False) -> Dialling:
        """Send a greeting; returns what reads the answer."""
        nonce = secrets.token_hex(32) if self.identity.secret is not None else ""
        dialling = Dialling(self.identity, to, nonce, probe, self.known if probe else "")
        self.send(connection, dialling.greeting)
        return dialling
