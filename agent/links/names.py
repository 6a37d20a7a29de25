"""Names of hosts: what they resolve to. A name service may be slow, so one thread asks it, beside the loop."""

from __future__ import annotations

import ipaddress
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from softrun.agent.links.quiet_log import QuietLog

MOST_NAMES = 256  # that are being looked up
MOST_WAITING = 1024  # for their answers

Place = tuple[int, tuple[Any, ...]]
"""A family, and an address as sockets of this family take it."""
Then = Callable[[list[Place]], None]
_Answers = deque[tuple[str, list[Place]]]


class Names:
    """Look-ups for a loop. The thread starts with the first look-up that needs it."""

    def __init__(self, selector: selectors.BaseSelector, log: QuietLog) -> None:
        self._selector = selector
        self._log = log
        self._waiting: dict[str, list[tuple[int, Then]]] = {}
        self._questions: SimpleQueue[str | None] = SimpleQueue()
        self._answers: _Answers = deque()
        self._bell: socket.socket | None = None

    def look_up(self, host: str, port: int, then: Then) -> None:
        """Call `then` with the places of the host, IPv4 first: at once if it is an address, else from the loop later.

        It gets no places if there are none, or if too many look-ups wait.
        """
        place = place_of(host, port)
        if place is not None:
            then([place])
        elif sum(map(len, self._waiting.values())) >= MOST_WAITING:
            then([])
        elif host in self._waiting:
            self._waiting[host].append((port, then))
        elif len(self._waiting) >= MOST_NAMES:
            then([])
        else:
            self._waiting[host] = [(port, then)]
            self._start()
            self._questions.put(host)

    def close(self) -> None:
        """Answer nothing any more. The thread ends with the look-up that it is at."""
        self._questions.put(None)
        if self._bell is not None:
            self._selector.unregister(self._bell)
            self._bell.close()
            self._bell = None

    def _start(self) -> None:
        if self._bell is None:
            self._bell, rope = socket.socketpair()
            self._bell.setblocking(False)
            rope.setblocking(False)
            self._selector.register(self._bell, selectors.EVENT_READ, self._rung)
            threading.Thread(
                target=_ask, name="softrun-names", args=(self._questions, self._answers, rope), daemon=True
            ).start()

    def _rung(self, _mask: int) -> None:
        assert self._bell is not None
        with suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass
        while self._answers:
            host, places = self._answers.popleft()
            for port, then in self._waiting.pop(host, []):
                try:
                    then([(family, (address[0], port, *address[2:])) for family, address in places])
                except Exception as error:
                    self._log.fault("after the look-up of %s: %s: %s", host, type(error).__name__, error)


def place_of(host: str, port: int) -> Place | None:
    """Return where an address is, or None if it is a name, or in a zone that this machine does not have."""
    try:
        address = ipaddress.ip_address(host)
        where = sockaddr(host, port)
    except (ValueError, OSError):
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return socket.AF_INET, (str(address.ipv4_mapped), port)  # nobody can listen at it in its other form
    return (socket.AF_INET6 if address.version == 6 else socket.AF_INET), where


def sockaddr(host: str, port: int) -> tuple[Any, ...]:
    """What a socket takes for an address; one of IPv6 may name its zone. Raises OSError if there is none such."""
    address, _, zone = host.partition("%")
    if not zone:
        return host, port
    return address, port, 0, int(zone) if zone.isdigit() else socket.if_nametoindex(zone)


def host_of(address: tuple[Any, ...]) -> str:
    """The host that a socket's address names; of a link-local one with its zone, which it means nothing without."""
    host, zone = str(address[0]), address[3] if len(address) == 4 else 0
    return f"{host}%{socket.if_indextoname(zone)}" if zone and "%" not in host else host


def _in_short(place: Place) -> Place:
    """The same place; an IPv4 address that is written as one of IPv6 in its own form."""
    host, port, *_ = place[1]
    known = place_of(host, port)
    return known if known is not None and known[0] != place[0] else place


def _ask(questions: SimpleQueue[str | None], answers: _Answers, rope: socket.socket) -> None:
    """Runs in the thread. The rope is closed here, so that no other socket can get its number while it is pulled."""
    with rope:
        while (host := questions.get()) is not None:
            try:
                found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except Exception:  # also what is no name at all: ValueError, UnicodeError
                found = []
            places = [_in_short((int(family), tuple(address))) for family, _, _, _, address in found]
            answers.append((host, sorted(dict.fromkeys(places), key=lambda place: place[0] != socket.AF_INET)))
            try:
                rope.send(b".")
            except BlockingIOError:
                pass  # the bell is ringing already
            except OSError:
                return  # the agent has ended


def is_loopback(host: str) -> bool:
    """Whether `host` is an address of the machine itself, or the name that stands for one on every machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Whether `host` is an address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
