"""What this agent dials: its links, one to a node, and probes.

A probe finds out whether a peer has ended, or only the link to it. The kernel closes the sockets of a process that
dies, so a link that breaks is the quickest sign of a death. But a link may break for other reasons, too, so this agent
then dials the peer's listener once more:

    what outlives the peer answers        it has ended, and these were its last words (`softrun.agent.proof.testament`)
    the peer answers as before            only the link was lost
    nobody listens, or somebody else      refused: it may have ended with all of its host, or be behind a firewall
    silence for `PROBE_S`                 it proves nothing, and is left to the missed beats

With a job secret, somebody else is whoever cannot prove to be that node. Only peers to which a link was up are probed,
and those that are said to have ended. With a secret no stranger can be one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

from softrun.agent.errors import ProtocolError
from softrun.agent.links.connection import Connection
from softrun.agent.links.handshake import Dialling, EndedError, RefusedError
from softrun.agent.links.wiring import Wiring
from softrun.agent.protocol.codec import decode_message
from softrun.agent.protocol.model import LastWords, Member
from softrun.agent.protocol.observations import Heard, LinkDown, LinkUp

PROBE_S = 5.0
TRIES = 20  # a dying process may still accept for a moment; each try takes one turn of the loop


class Probes:
    """The probes of one agent. LinkDown follows each."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._until: dict[Connection, float] = {}  # in the order in which they are due

    def look(self, node: str, address: tuple[str, int], tries: int = TRIES) -> None:
        """Find out whether the agent of `node`, which listened at `address`, has ended."""

        def answered(connection: Connection, line: bytes) -> None:
            try:
                is_alive = dialling.is_alive(line)
            except EndedError as end:
                if end.reply:
                    self._wiring.send(connection, end.reply)
                connection.sealing, connection.up, connection.on_line = end.sealing, True, told
                return
            finish(connection, refused=not is_alive)

        def told(connection: Connection, line: bytes) -> None:
            message = decode_message(connection.unseal(line))
            if not isinstance(message, LastWords):
                raise ProtocolError("these are no last words")
            self._wiring.observe(Heard(node, message))
            finish(connection, refused=False)

        def finish(connection: Connection, refused: bool) -> None:
            self._forget(connection)
            connection.close()
            self._wiring.observe(LinkDown(node, refused))

        def closed(connection: Connection, code: int) -> None:
            self._forget(connection)
            if code in (0, errno.ECONNRESET) and tries > 1:
                self.look(node, address, tries - 1)
            else:
                self._wiring.observe(LinkDown(node, refused=code in (errno.ECONNREFUSED, errno.EPROTO)))

        connection = self._wiring.connect(address, answered, closed)
        connection.node = node
        self._until[connection] = self._wiring.clock() + PROBE_S
        dialling = self._wiring.greet(connection, to=node, probe=True)

    def deadline(self) -> float | None:
        """When `sweep` has something to do."""
        return next(iter(self._until.values()), None)

    def sweep(self, now: float) -> None:
        """Give up the probes that have waited long enough."""
        while self._until:
            connection, until = next(iter(self._until.items()))
            if until > now:
                return
            self._forget(connection)
            connection.lose(errno.ETIMEDOUT)

    def _forget(self, connection: Connection) -> None:
        self._until.pop(connection, None)


class Dialled:
    """The dialler's end of links. `close_other` closes the link that a node has dialled to this agent, if it has."""

    def __init__(self, wiring: Wiring, probes: Probes, close_other: Callable[[str], None]) -> None:
        self._wiring = wiring
        self._close_other = close_other
        self._probes = probes
        self._links: dict[str, Connection] = {}
        self._replaced: dict[
            str, Connection
        ] = {}  # up until the new one is, so that the peer does not take it for lost

    def dial(self, member: Member) -> None:
        """Connect to the agent of `member`; LinkUp or LinkDown follows."""
        before = self._links.pop(member.node, None)
        if before is not None and before.up:
            self._drop_replaced(member.node)
            self._replaced[member.node] = before
        elif before is not None:
            before.close()
        connection = self._wiring.connect((member.host, member.port), _not_yet, self._closed)
        connection.node = member.node
        self._links[member.node] = connection
        connection.on_line = partial(self._answered, self._wiring.greet(connection, to=member.node))

    def hang_up(self, node: str) -> None:
        """Close the link to `node`, if there is one."""
        self._drop_replaced(node)
        connection = self._links.pop(node, None)
        if connection is not None:
            connection.close()

    def link(self, node: str) -> Connection | None:
        """Return the link to `node` if it is up."""
        connection = self._links.get(node)
        return connection if connection is not None and connection.up else None

    def adopt(self, connection: Connection) -> None:
        """Take over a connection that is up, and that was made to find any agent. It ends a dial to its node."""
        node = connection.node
        unfinished = self._links.pop(node, None)
        self._drop_replaced(node)
        self._links[node] = connection
        connection.on_line, connection.on_close = self._said, self._found_closed
        if unfinished is not None:
            unfinished.close()
            self._wiring.observe(LinkUp(node))

    def _answered(self, dialling: Dialling, connection: Connection, line: bytes) -> None:
        try:
            met = dialling.answered(line)
        except EndedError as end:
            self._links.pop(connection.node, None)
            connection.close()
            self._probes.look(end.node, connection.address)
            return
        except RefusedError as error:
            if error.reply:
                self._wiring.send(connection, error.reply)
            raise
        if met.reply:
            self._wiring.send(connection, met.reply)
        connection.sealing = met.sealing
        connection.up = True
        connection.on_line = self._said
        self._drop_replaced(connection.node)
        self._wiring.observe(LinkUp(connection.node))

    def _said(self, connection: Connection, line: bytes) -> None:
        message = decode_message(connection.unseal(line))
        self._wiring.observe(Heard(connection.node, message))

    def _closed(self, connection: Connection, code: int) -> None:
        node = connection.node
        if self._replaced.get(node) is connection:
            del self._replaced[node]  # what becomes of the new one will be told
            return
        if self._links.get(node) is connection:
            del self._links[node]
        self._drop_replaced(node)
        if connection.up:
            self._probes.look(node, connection.address)
        else:
            refused = code == errno.ECONNREFUSED and self._wiring.leads_to_its_host(connection.address[0])
            self._wiring.observe(LinkDown(node, refused))

    def _found_closed(self, connection: Connection, code: int) -> None:
        """What was said on a link that was found may be lost, and its node, which has dialled one as well, would not
        know: so that one is closed, too. The node dials again, and begins as with any new link."""
        self._close_other(connection.node)
        self._closed(connection, code)

    def _drop_replaced(self, node: str) -> None:
        before = self._replaced.pop(node, None)
        if before is not None:
            before.close()


def _not_yet(_connection: Connection, _line: bytes) -> None:
    raise AssertionError("a line before the greeting was sent")
