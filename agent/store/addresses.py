"""Names and addresses of hosts: what a name resolves to, and the address by which others reach this machine."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from softrun.agent.errors import StoreLostError, UsageError
from softrun.agent.links.names import host_of
from softrun.agent.protocol.model import Address
from softrun.runtime.clock import boottime

_RETRY_S = 1.0
_T = TypeVar("_T")

logger = logging.getLogger("softrun")


DEFAULT_PORT = 29400


def parse_endpoints(endpoints: str) -> tuple[Address, ...]:
    """Return the places that a comma-separated list names, each as `parse_endpoint` reads it. Raises UsageError."""
    listed = endpoints.split(",")
    if len(listed) > 1 and not all(each.strip() for each in listed):
        raise UsageError(f"--rdzv_endpoint {endpoints!r} has an empty place: give HOST:PORT,HOST:PORT,…")
    return tuple(dict.fromkeys(Address(*parse_endpoint(each)) for each in listed))


def parse_endpoint(endpoint: str, flag: str = "--rdzv_endpoint") -> tuple[str, int]:
    """HOST[:PORT], with an IPv6 address in brackets; the port is 29400 by default. Raises UsageError."""
    text = endpoint.strip() or "localhost"
    host, separator, port = text.rpartition(":")
    if text.endswith("]") or not separator:
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdigit() and len(port) <= len("65535") and int(port) <= 65535
    if not host or not is_port or "/" in host or " " in host:
        raise UsageError(f"{flag} {endpoint!r} is not HOST:PORT: give a host name or address, and a port")
    return host, int(port)


def address_towards(targets: list[tuple[str, int]], patience_s: float) -> str:
    """Return this machine's address on the way to the first target that it has a route to. Raises StoreLostError if
    it has none within `patience_s` seconds."""

    def look_up() -> str:
        for host, port in targets:
            try:
                return _address_towards(host, port)
            except OSError as error:
                reason = error
        raise reason

    return _patiently(look_up, targets[0][0], patience_s)


def _address_towards(host: str, port: int) -> str:
    family, kind, _, _, target = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as sock:
        sock.connect(target)  # sends nothing, for a datagram socket
        address = host_of(sock.getsockname())  # hosts that meet at a link-local one call their links alike
    # A machine often knows its own name as a loopback address, while the others know its real address by that name.
    return host if _is_loopback(address) and not _is_loopback(host) else address


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _patiently(look_up: Callable[[], _T], host: str, patience_s: float) -> _T:
    deadline = boottime() + patience_s
    told = False
    while True:
        try:
            return look_up()
        except OSError as error:
            reason = error.strerror or str(error)
        if boottime() + _RETRY_S > deadline:
            raise StoreLostError(
                f"the host {host!r} of --rdzv_endpoint cannot be reached after {patience_s:g} s ({reason}): correct "
                "it, or the name service; if only this machine's own address is in doubt, give it by --local_addr"
            )
        if not told:
            logger.warning("the host %r cannot be reached yet (%s): trying for %g s", host, reason, patience_s)
            told = True
        time.sleep(_RETRY_S)
