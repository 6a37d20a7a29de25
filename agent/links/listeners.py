"""The listeners of an agent: the one that its peers know, and those at the endpoints where the job is looked for."""

from __future__ import annotations

import errno
import resource
import selectors
import socket
from collections.abc import Callable, Sequence
from enum import Enum

from softrun.agent.links.names import Place, host_of, is_loopback, sockaddr
from softrun.agent.links.quiet_log import QuietLog
from softrun.agent.protocol.model import Address

BACKLOG = 4096
ACCEPTS_AT_ONCE = 64  # so that the links that stand are served in between
ACCEPT_AGAIN_S = 0.1  # how long to wait after the descriptors have run out
RESERVED_DESCRIPTORS = 64  # for all that is not a link: files, channels, processes
_SILENT_S = 5  # how long the kernel keeps a connection that says nothing to itself

Welcome = Callable[[socket.socket, str, bool], None]
"""Called with a socket, where it comes from, and whether it came to an endpoint."""


class Listens(Enum):
    """What has come of the wish to listen at an endpoint."""

    YES = "it listens"
    TAKEN = "the address is this machine's, and somebody else listens there"
    NO = "the address is not this machine's, or not to be listened at"


class Listeners:
    """The listening sockets. Give each connection to `welcome`, once `room_at` says that there is room for it."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        log: QuietLog,
        clock: Callable[[], float],
        main: socket.socket,
        bind: str,
        welcome: Welcome,
        room_at: Callable[[float], float],
    ) -> None:
        self._selector = selector
        self._log = log
        self._clock = clock
        self._main = main
        self._bind = bind
        self._welcome = welcome
        self._room_at = room_at
        self._endpoints: dict[Address, list[socket.socket]] = {}
        self._paused_until: float | None = None
        self._waits_for_room = False
        self.endpoint_port: int | None = None
        selector.register(main, selectors.EVENT_READ, lambda _mask: self._accept(main, False))

    @property
    def descriptor(self) -> int:
        """Of the socket that the peers know."""
        return self._main.fileno()

    def listens_at(self, endpoint: Address) -> bool:
        """Whether this agent listens at the endpoint already."""
        return endpoint in self._endpoints

    def listen_at(self, endpoint: Address, places: Sequence[Place], anywhere: bool) -> Listens:
        """Listen at an endpoint that is in these places, if all are this machine's, and nobody listens there.

        With `anywhere`, listen at all addresses if they are not this machine's; so it does, as torch, if the endpoint
        has this machine's name, whatever that leads to.
        """
        anywhere = anywhere or endpoint.host == socket.gethostname()
        if not 0 <= endpoint.port <= 65535:
            return Listens.NO
        hosts = self._hosts(endpoint.host, places)
        six = self._main.family == socket.AF_INET6
        try:
            socks = _listen_at_all(hosts, endpoint.port, six)
            if not socks and anywhere:
                socks = [listening_for_greetings("", endpoint.port, all_six=six)]
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return Listens.TAKEN
            self._log.warn("this agent cannot listen at %s:%d: %s", endpoint.host, endpoint.port, error)
            return Listens.NO
        if not socks:
            return Listens.NO
        self._endpoints[endpoint] = socks
        self.endpoint_port = socks[0].getsockname()[1]
        if self._paused_until is None:
            for sock in socks:
                self._register(sock)
        return Listens.YES

    def _hosts(self, host: str, places: Sequence[Place]) -> list[str]:
        """Where to listen. A machine often knows its own name as a loopback address, and others its real address by
        that name; so then it listens where its peers find it, too."""
        hosts = list(dict.fromkeys(host_of(address) for _, address in places))
        is_name = hosts != [host]
        if is_name and hosts and all(map(is_loopback, hosts)) and not _means_loopback(host):
            return [self._bind] if self._bind in ("", "0.0.0.0", "::") else list(dict.fromkeys([*hosts, self._bind]))
        return hosts

    def listen_again(self) -> None:
        """There is room again."""
        if self._waits_for_room:
            self._resume()

    def deadline(self) -> float | None:
        """When `sweep` has something to do."""
        return self._paused_until

    def sweep(self, now: float) -> None:
        """Listen again if it is time."""
        if self._paused_until is not None and now >= self._paused_until:
            self._resume()

    def close(self) -> None:
        """Stop listening."""
        for sock in self._all():
            if self._paused_until is None:
                self._selector.unregister(sock)
            sock.close()

    def _all(self) -> list[socket.socket]:
        return [self._main, *(sock for socks in self._endpoints.values() for sock in socks)]

    def _register(self, sock: socket.socket) -> None:
        is_endpoint = sock is not self._main
        self._selector.register(sock, selectors.EVENT_READ, lambda _mask: self._accept(sock, is_endpoint))

    def _pause(self, until: float, for_room: bool) -> None:
        """Nothing is accepted until then: a listener would stay readable, and keep the loop busy."""
        if self._paused_until is None:
            for sock in self._all():
                self._selector.unregister(sock)
        self._paused_until = until
        self._waits_for_room = for_room

    def _resume(self) -> None:
        self._paused_until = None
        self._waits_for_room = False
        for sock in self._all():
            self._register(sock)

    def _accept(self, listener: socket.socket, is_endpoint: bool) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if self._paused_until is not None:
                return
            now = self._clock()
            until = self._room_at(now)
            if until > now:
                self._pause(until, for_room=True)
                return
            try:
                sock, source = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # it is gone already
            except OSError as error:
                self._log.warn("a link could not be accepted: %s", error)
                self._pause(now + ACCEPT_AGAIN_S, for_room=False)
                return
            if _is_short_of_descriptors(sock):
                sock.close()
                self._log.warn("a link could not be accepted: too few descriptors are left, raise `ulimit -n`")
                self._pause(now + ACCEPT_AGAIN_S, for_room=False)
                return
            try:
                self._welcome(sock, str(source[0]), is_endpoint)
            except Exception as error:
                sock.close()
                self._log.fault("a link could not be accepted: %s: %s", type(error).__name__, error)


def listening(host: str, port: int = 0, *, all_six: bool = True) -> socket.socket:
    """Return a socket that listens at an address of this machine; "": at all, IPv6 as well if `all_six`.

    Raises OSError if it is not this machine's, or if somebody listens there.
    """
    six = ":" in host or (host == "" and all_six and socket.has_dualstack_ipv6())
    family = socket.AF_INET6 if six else socket.AF_INET
    dual = six and host in ("", "::")
    return socket.create_server(sockaddr(host, port), family=family, dualstack_ipv6=dual, backlog=BACKLOG)


def listening_for_greetings(host: str, port: int, *, all_six: bool) -> socket.socket:
    """The same, for agents."""
    sock = listening(host, port, all_six=all_six)
    sock.setblocking(False)
    # Agents greet at once, so a connection is of no interest before it has sent something.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _SILENT_S)
    return sock


def _is_short_of_descriptors(newest: socket.socket) -> bool:
    """Whether the rest of the agent needs those that are left. A new one has the lowest number that is free."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most != resource.RLIM_INFINITY and most - newest.fileno() <= min(RESERVED_DESCRIPTORS, most // 4)


def _listen_at_all(hosts: Sequence[str], port: int, all_six: bool) -> list[socket.socket]:
    """Listen at all of them, at one port. Returns no sockets if not all are this machine's."""
    socks: list[socket.socket] = []
    for host in hosts:
        try:
            chosen = socks[0].getsockname()[1] if socks else port
            socks.append(listening_for_greetings(host, chosen, all_six=all_six))
        except OSError as error:
            # Where IPv6 is switched off, names still resolve to its loopback address.
            if error.errno == errno.EAFNOSUPPORT or (error.errno == errno.EADDRNOTAVAIL and is_loopback(host)):
                continue
            for sock in socks:
                sock.close()
            if error.errno == errno.EADDRNOTAVAIL:
                return []
            raise
    return socks


def _means_loopback(name: str) -> bool:
    """Whether a name stands for the loopback address on every machine."""
    first, *_, last = name.lower().rstrip(".").split(".") * 2
    return last == "localhost" or first in ("localhost", "ip6-localhost", "ip6-loopback", "loopback")
