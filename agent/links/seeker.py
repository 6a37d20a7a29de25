"""The seeker: it looks for the job at an endpoint. If the address is this machine's, and free, the job begins here."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from softrun.agent.errors import ProtocolError
from softrun.agent.links.connection import Connection
from softrun.agent.links.handshake import ANOTHER_PROGRAM, MAYBE_OURS, Dialling, EndedError, RefusedError
from softrun.agent.links.listeners import Listens
from softrun.agent.links.names import Place
from softrun.agent.links.wiring import Wiring
from softrun.agent.protocol.model import Address
from softrun.agent.protocol.observations import Found, Listening, NotFound

ANSWER_S = 3.0  # how long an agent may take that greets hundreds at once
TRIES = 3  # an agent that strangers crowd out may hang up once


@dataclass(eq=False)
class _Search:
    endpoint: Address
    until: float
    may_listen: bool
    places: list[Place] = field(default_factory=list)
    is_here: bool = False  # the address is this machine's, and somebody listens there
    tries: int = TRIES
    stranger: str = ""
    connected: bool = False  # something has accepted, and has time to answer
    connection: Connection | None = None


class Seeker:
    """The searches of one agent.

    `listen_at` tries to listen at an endpoint. `has_link` says whether there is a link to a node already, and `adopt`
    takes over one that was found. `look` finds out about a node that has ended. `listens`: whether this agent may
    listen there; None: if the address is its own. `is_only_host`: the job can begin nowhere else, so whoever has the
    port and says nothing is a stranger, and not an agent of it that was stopped.
    """

    def __init__(
        self,
        wiring: Wiring,
        listens_at: Callable[[Address], bool],
        listen_at: Callable[[Address, Sequence[Place], bool], Listens],
        has_link: Callable[[str], bool],
        adopt: Callable[[Connection], None],
        look: Callable[[str, tuple[str, int]], None],
        listens: bool | None,
        is_only_host: bool,
    ) -> None:
        self._wiring = wiring
        self._listens_at = listens_at
        self._listen_at = listen_at
        self._has_link = has_link
        self._adopt = adopt
        self._look = look
        self._listens = listens
        self._is_only_host = is_only_host
        self._searches: dict[Address, _Search] = {}

    def seek(self, endpoint: Address, give_up_s: float, may_listen: bool = True) -> None:
        """Look for the job at an endpoint; Listening, Found or NotFound follows. A search that runs there ends."""
        before = self._searches.pop(endpoint, None)
        if before is not None and before.connection is not None:
            before.connection.close()
        if self._listens_at(endpoint):
            self._wiring.observe(Listening(endpoint))
            return
        search = self._searches[endpoint] = _Search(endpoint, self._wiring.clock() + give_up_s, may_listen)
        self._wiring.names.look_up(endpoint.host, endpoint.port, partial(self._resolved, search))

    def deadline(self) -> float | None:
        """When `sweep` has something to do."""
        return min((search.until for search in self._searches.values()), default=None)

    def sweep(self, now: float) -> None:
        """Give up the searches that have taken long enough."""
        for search in [search for search in self._searches.values() if search.until <= now]:
            if search.connection is not None and not search.connection.connecting and not search.connected:
                search.connected, search.until = True, now + ANSWER_S
                continue
            self._end(search)
            bars = search.connected and search.is_here and self._is_only_host
            stranger = ANOTHER_PROGRAM if bars else search.stranger
            self._wiring.observe(NotFound(search.endpoint, stranger, doubtful=search.connected and not bars))

    def _resolved(self, search: _Search, places: list[Place]) -> None:
        endpoint = search.endpoint
        if self._searches.get(endpoint) is not search:
            return
        may_listen = search.may_listen and self._listens is not False
        if may_listen:
            listens = self._listen_at(endpoint, places, self._listens is True)
            if listens is Listens.YES:
                self._end(search)
                self._wiring.observe(Listening(endpoint))
                return
            search.is_here = listens is Listens.TAKEN
        search.places = places
        self._dial(search)

    def _dial(self, search: _Search) -> None:
        connection = search.connection = self._wiring.connection(_not_yet, partial(self._closed, search))
        connection.address = (search.endpoint.host, search.endpoint.port)
        connection.on_line = partial(self._answered, search, self._wiring.greet(connection, to=""))
        self._wiring.connect_to(connection, search.places)

    def _answered(self, search: _Search, dialling: Dialling, connection: Connection, line: bytes) -> None:
        try:
            met = dialling.answered(line)
        except EndedError as end:
            self._end(search)
            self._look(end.node, connection.address)
            self._wiring.observe(NotFound(search.endpoint))
            return
        except RefusedError as error:
            search.stranger = error.stranger
            if error.reply:
                self._wiring.send(connection, error.reply)
            raise
        except ProtocolError:
            search.stranger = ANOTHER_PROGRAM
            raise
        connection.node = met.node
        if met.node == self._wiring.identity.node or self._has_link(met.node):
            self._end(search)
        else:
            if met.reply:
                self._wiring.send(connection, met.reply)
            connection.address = met.address
            connection.sealing = met.sealing
            connection.up = True
            search.connection = None
            self._end(search)
            self._adopt(connection)
        self._wiring.observe(Found(search.endpoint, met.node))

    def _closed(self, search: _Search, _connection: Connection, code: int) -> None:
        search.connection = None
        if self._searches.get(search.endpoint) is not search:
            return
        hung_up = code in (0, errno.ECONNRESET, errno.EPIPE)
        if hung_up and search.tries > 1:
            search.tries -= 1
            self._dial(search)
            return
        # A proxy, or whatever else has another machine's address, hangs up until the agent behind it is there.
        may_come = hung_up and not search.stranger and not search.is_here
        if (hung_up or code == errno.EPROTO) and not may_come:
            search.stranger = search.stranger or ANOTHER_PROGRAM
        self._end(search)
        refused = code == errno.ECONNREFUSED and self._wiring.leads_to_its_host(search.endpoint.host)
        doubtful = may_come or search.stranger in MAYBE_OURS
        self._wiring.observe(NotFound(search.endpoint, search.stranger, refused, doubtful))

    def _end(self, search: _Search) -> None:
        del self._searches[search.endpoint]
        if search.connection is not None:
            search.connection.close()


def _not_yet(_connection: Connection, _line: bytes) -> None:
    raise AssertionError("a line before the greeting was sent")
