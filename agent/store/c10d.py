"""The embedded store: torch's TCPStore, hosted by the agent whose address the endpoint names.

Keys, under one prefix per job:

    record/<version>   one round; created once, never changed, so creating is the compare-and-swap; pruned when old
    head               the version that its creator believed to be the newest; may lag, never runs ahead
    beats              the leader's count
    joined, gone       how many agents have come and how many have left; `deserted` once these are equal

Waiting for a change is `wait` on the key of the next version: the server wakes the waiter. The job does not survive the
loss of the agent that hosts the store.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from softrun.agent.errors import StoreLostError, UsageError
from softrun.agent.store.addresses import resolve
from softrun.agent.store.base import Change, LeaderBeats, Leases
from softrun.runtime.groups.sockets import open_sockets

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

DEFAULT_PORT = 29400
KEPT = 64  # versions; a watcher that missed more of them jumps to the newest
_WAIT = timedelta(days=1)
_FAREWELL = timedelta(seconds=1)
_ATTEMPT = timedelta(seconds=2)


class C10dStore:
    """`host` and `port` are the endpoint's. By default it hosts the store if the address is this machine's and the port
    is free. `is_host` decides instead: True whatever the address is (a service may lead here), False never."""

    leases: Leases | None = None

    def __init__(self, job: str, host: str, port: int, connect_timeout_s: float, is_host: bool | None = None) -> None:
        self.leader_beats: LeaderBeats | None = self
        self._prefix = f"softrun/{job}/"
        self._endpoint = f"{host}:{port}"
        self._timeout = timedelta(seconds=connect_timeout_s)
        self._has_head = False  # once it exists it stays
        addresses = resolve(host, connect_timeout_s)
        self._addresses = {"127.0.0.1", "::1", *(address for _, address in addresses)}
        self._target, self._port = host, port
        self._server: TCPStore | None = None
        ours = [address for address in addresses if _is_ours(*address)]
        if is_host:
            self._calls, self._watch = self._host(_try_to_listen(ours or addresses, port))
        elif ours and is_host is None:
            self._calls, self._watch = self._find(ours)
        else:
            self._calls, self._watch = self._connect(), self._connect()
        self.hosted = self._server is not None
        with _loss_of(self._endpoint):
            self._calls.add(self._prefix + "joined", 1)

    def latest(self) -> bytes | None:
        version = self._newest(self._calls)
        return self._read(self._calls, version) if version else None

    def create(self, version: int, record: bytes) -> bytes:
        with _loss_of(self._endpoint):
            stands = self._calls.compare_set(self._key(version), "", record.decode())
            if stands == record:
                self._calls.set(self._prefix + "head", str(version))
                if version > KEPT:
                    self._calls.delete_key(self._key(version - KEPT))
            return stands

    def wait_beyond(self, version: int) -> Change:
        from torch.distributed import DistStoreError

        # For a watcher that was away the next version may be pruned already, so it first looks for the newest.
        while (newest := self._head(self._watch)) <= version:
            with _loss_of(self._endpoint), suppress(DistStoreError):  # the wait ends after a while, and begins again
                self._watch.wait([self._key(version + 1)], _WAIT)
                newest = max(self._head(self._watch), version + 1)
                break
        return Change(self._read(self._watch, newest))

    def beat(self) -> int:
        with _loss_of(self._endpoint):
            return self._calls.add(self._prefix + "beats", 1)

    def beats(self) -> int:
        with _loss_of(self._endpoint):
            return self._calls.add(self._prefix + "beats", 0)

    def leave(self, *, over: bool) -> None:  # noqa: ARG002
        # Agents that were killed never report that they are done, so the host does not wait for long.
        with suppress(RuntimeError):
            gone = self._calls.add(self._prefix + "gone", 1)
            if gone >= self._calls.add(self._prefix + "joined", 0):
                self._calls.set(self._prefix + "deserted", "yes")
            if self.hosted:
                self._calls.wait([self._prefix + "deserted"], _FAREWELL)

    def close(self) -> None:
        # A TCPStore cannot be interrupted, but its connections can be shut down.
        _shut_down_connections(self._port, self._addresses)
        self._server = None

    def _key(self, version: int) -> str:
        return f"{self._prefix}record/{version}"

    def _newest(self, store: TCPStore) -> int:
        with _loss_of(self._endpoint):
            version = self._head(store)
            while store.check([self._key(version + 1)]):
                version += 1
            return version

    def _head(self, store: TCPStore) -> int:
        with _loss_of(self._endpoint):
            head = self._prefix + "head"
            self._has_head = self._has_head or store.check([head])
            return int(store.get(head)) if self._has_head else 0

    def _read(self, store: TCPStore, version: int) -> bytes:
        with _loss_of(self._endpoint):
            return store.get(self._key(version))

    def _find(self, ours: list[tuple[socket.AddressFamily, str]]) -> tuple[TCPStore, TCPStore]:
        """Two clients of the store, which this agent hosts if nobody does.

        The process that has the port may be about to end. So each try to connect is short: of two agents that only
        tried to connect, neither would host the store.
        """
        give_up_at = time.monotonic() + self._timeout.total_seconds()
        while True:
            listener = _try_to_listen(ours, self._port)
            if listener is not None:
                return self._host(listener)
            try:
                timeout = min(_ATTEMPT, self._timeout)
                return self._connect(timeout=timeout), self._connect(timeout=timeout)
            except StoreLostError:
                if time.monotonic() > give_up_at:
                    raise

    def _host(self, listener: socket.socket | None) -> tuple[TCPStore, TCPStore]:
        """Host the store; returns two clients of it."""
        if listener is None:
            raise StoreLostError(
                f"the store cannot be hosted at {self._endpoint}, because the port is taken: choose another one, or "
                "start only one node with is_host in --rdzv_conf, or with --node_rank 0"
            )
        self._target = "::1" if listener.family is socket.AF_INET6 else "127.0.0.1"
        self._port = listener.getsockname()[1]
        self._server = self._connect(listener)
        return self._connect(), self._connect()

    def _connect(self, listener: socket.socket | None = None, timeout: timedelta | None = None) -> TCPStore:
        from torch._C._distributed_c10d import TCPStore

        try:
            store = TCPStore(
                self._target,
                self._port,
                is_master=listener is not None,
                timeout=timeout or self._timeout,
                wait_for_workers=False,
                master_listen_fd=listener.detach() if listener is not None else None,
            )
        except RuntimeError as error:
            raise StoreLostError(
                f"no store answers at {self._endpoint} after {self._timeout.total_seconds():g} s: start the agent of "
                "that host, or correct --rdzv_endpoint"
            ) from error
        store.set_timeout(self._timeout)
        return store


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """HOST[:PORT], with an IPv6 address in brackets; the port is 29400 by default. Raises UsageError."""
    text = endpoint.strip() or "localhost"
    host, separator, port = text.rpartition(":")
    if text.endswith("]") or not separator:
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535 or "/" in host or " " in host:
        raise UsageError(f"--rdzv_endpoint {endpoint!r} is not HOST:PORT: give a host name or address, and a port")
    return host, int(port)


def _is_ours(family: socket.AddressFamily, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _try_to_listen(addresses: list[tuple[socket.AddressFamily, str]], port: int) -> socket.socket | None:
    """A listening socket on all addresses of this machine, if the port is free; of the first address's family."""
    # Not on both families for an IPv4 endpoint: TCPStore looks up every peer's name, and no hosts file has the names of
    # IPv4 peers on an IPv6 socket.
    family, _ = addresses[0]
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=family is socket.AF_INET6, backlog=4096)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return None
        raise StoreLostError(
            f"the store cannot listen on port {port} ({error.strerror}): choose another --rdzv_endpoint"
        ) from error


@contextmanager
def _loss_of(endpoint: str) -> Iterator[None]:
    """Turn any failure of the TCPStore into StoreLostError."""
    try:
        yield
    except RuntimeError as error:  # torch's DistError is one
        raise StoreLostError(
            f"the store at {endpoint} is lost: the agent that hosted it has ended; start the job again"
        ) from error


def _shut_down_connections(port: int, addresses: set[str]) -> None:
    """Shut down every connection of this process to the store: all of them are ours."""
    for number in open_sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as sock:
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            host, peer_port = sock.getpeername()[:2]
            if peer_port == port and host.removeprefix("::ffff:") in addresses:
                sock.shutdown(socket.SHUT_RDWR)
