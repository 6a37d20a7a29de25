"""Links: connections between agents, on which a member talks to its leader.

The member dials, the leader accepts. Every line is one document, at most `MAX_LINE` bytes: the handshake's
(`softrun.agent.links.handshake`), then messages (`softrun.agent.protocol.codec`) in any order, sealed if there is a job
secret (`softrun.agent.links.sealing`).

Nothing here blocks: the sockets are non-blocking and belong to the driver's selector, and names are looked up in a
thread. Nothing that comes over a connection ends more than that connection.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence
from typing import Any

from softrun.agent.links.accepted import Accepted
from softrun.agent.links.connection import Connection
from softrun.agent.links.dialled import Dialled, Probes
from softrun.agent.links.greetings import LONGEST
from softrun.agent.links.handshake import Identity
from softrun.agent.links.listeners import Listeners, listening_for_greetings
from softrun.agent.links.names import Names
from softrun.agent.links.quiet_log import QuietLog
from softrun.agent.links.relay import Relays
from softrun.agent.links.seeker import Seeker
from softrun.agent.links.strangers import Strangers
from softrun.agent.links.wiring import Wiring
from softrun.agent.protocol.codec import PROTOCOL_VERSION, encode_message
from softrun.agent.protocol.effects import Seek
from softrun.agent.protocol.model import Member, Message
from softrun.agent.protocol.observations import Observation
from softrun.runtime.clock import boottime


class Links:
    """All links of one agent. `observe` is called with what happens on them.

    `bind` is the address at which it listens, and `port` the port; "" is all addresses, and 0 a free port. With a
    `secret`, only agents that have the same one get a link. `listens` says whether it may listen at the endpoint of
    `seek`: None means if the address is this machine's. `is_only_host`: the job can begin nowhere else.
    Raises UsageError if the other agents cannot be told these names, OSError if it cannot listen there.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        *,
        job: str,
        node: str,
        host: str,
        observe: Callable[[Observation], None],
        secret: bytes | None = None,
        bind: str = "",
        port: int = 0,
        listens: bool | None = None,
        is_only_host: bool = False,
        clock: Callable[[], float] = boottime,
    ) -> None:
        Identity(job, node, host, 1, secret).check()
        main = listening_for_greetings(bind, port, all_six=":" in host)
        self.port: int = main.getsockname()[1]
        self._clock = clock
        log = QuietLog(clock)
        self._wiring = Wiring(
            selector=selector,
            identity=Identity(job, node, host, self.port, secret),
            observe=observe,
            send=self._send,
            clock=clock,
            log=log,
            names=Names(selector, log),
        )
        self._said: dict[Connection, None] = {}  # those with lines that `flush` sends
        self._probes = Probes(self._wiring)
        self._relays = Relays(selector, log, clock)
        self._strangers = Strangers(log, lambda: self._listeners.listen_again())
        self._dialled = Dialled(self._wiring, self._probes, close_other=lambda node: self._accepted.close(node))
        self._accepted = Accepted(self._wiring, self._probes, self._strangers, self._has_dialled)
        self._listeners = Listeners(
            selector,
            log,
            clock,
            main,
            bind,
            welcome=lambda sock, source, is_endpoint: self._accepted.welcome(
                sock, source, self._divert if is_endpoint else None
            ),
            room_at=self._strangers.room_at,
        )
        self._seeker = Seeker(
            self._wiring,
            listens_at=self._listeners.listens_at,
            listen_at=self._listeners.listen_at,
            has_link=self._has_dialled,
            adopt=self._dialled.adopt,
            look=self._probes.look,
            listens=listens,
            is_only_host=is_only_host,
        )
        self._timed = (self._probes, self._strangers, self._listeners, self._seeker, self._relays)

    @property
    def about(self) -> dict[str, Any]:
        """Who this agent is, for its testament."""
        identity = self._wiring.identity
        return {
            "version": PROTOCOL_VERSION,
            "job": identity.job,
            "node": identity.node,
            "host": identity.host,
            "port": identity.port,
            "secret": (identity.secret or b"").hex(),
        }

    def knows(self, records: Sequence[str]) -> None:
        """Note the names of this agent's record and of those before it, the newest first: so many as can be said."""
        self._wiring.known = " ".join(records)[:LONGEST]

    @property
    def descriptor(self) -> int:
        """Of the listening socket that the peers know."""
        return self._listeners.descriptor

    @property
    def endpoint_port(self) -> int | None:
        """The port at which it listens for who looks for the job, also if the endpoint has port 0. None: at none."""
        return self._listeners.endpoint_port

    def dial(self, member: Member) -> None:
        """Connect to the agent of `member`; LinkUp or LinkDown follows."""
        self._dialled.dial(member)

    def hang_up(self, node: str) -> None:
        """Close the link that was dialled to `node`, or found, if there is one. No observation follows."""
        self._dialled.hang_up(node)

    def seek(self, seek: Seek) -> None:
        """Look for the job at an endpoint; Listening, Found or NotFound follows.

        A link that was found is one that was dialled, though no LinkUp follows.
        """
        self._seeker.seek(seek.endpoint, seek.give_up_s, seek.listens)

    def relay_to(self, port: int | None) -> None:
        """Pass what comes to the endpoint, and is no agent's, on to this port of this machine; None: close it."""
        self._relays.port = port

    def say(self, node: str | None, message: Message) -> None:
        """Send on the link to `node`, or with None on every accepted link, at the next `flush`.

        A link that is not up takes nothing.
        """
        if node is None:
            targets = self._accepted.links()
        else:
            target = self._dialled.link(node) or self._accepted.link(node)
            targets = [target] if target is not None else []
        line = encode_message(message) if targets else b""
        for connection in targets:
            self._send(connection, line)

    def flush(self) -> None:
        """Send what was said: all that was said to one node at once."""
        said, self._said = self._said, {}
        for connection in said:
            connection.push()

    def deadline(self) -> float | None:
        """When to call `sweep` though nothing happens; None if nothing is due."""
        if self._wiring.soon or self._said:
            return self._clock()
        return min((due for part in self._timed if (due := part.deadline()) is not None), default=None)

    def sweep(self) -> None:
        """Do what is due. Call it whenever the loop wakes, and at the deadline."""
        self.flush()
        for _ in range(len(self._wiring.soon)):
            self._wiring.soon.popleft()()
        now = self._clock()
        for part in self._timed:
            if (due := part.deadline()) is not None and due <= now:
                part.sweep(now)

    def close(self, flush_s: float = 1.0) -> None:
        """Send what is unsent, in at most `flush_s` seconds, then close everything.

        The listeners first: who sees the end of a link, and probes, is left to the orphan reapers.
        """
        self._listeners.close()
        until = boottime() + flush_s
        for connection in list(self._wiring.open):
            if (left := until - boottime()) > 0:
                connection.flush(left)
            connection.close()
        self._relays.close()
        self._wiring.names.close()

    def _has_dialled(self, node: str) -> bool:
        return self._dialled.link(node) is not None

    def _send(self, connection: Connection, line: bytes) -> None:
        connection.put(line)
        if connection.up:
            self._said[connection] = None
        else:  # a line of a handshake: the connection may be closed next
            connection.push()

    def _divert(self, connection: Connection) -> None:
        self._strangers.forget(connection)
        sock = connection.release()
        if sock is not None:
            self._relays.take(sock)
