"""The connections of gloo's groups: which they are, and how to make a thread raise that waits for one of them.

gloo has no abort: `abort` and `shutdown` of torch 2.13 free no thread (pytorch#130345). So to abort a group its
connections are shut down underneath it for reading: gloo reads an end of file, and every waiting thread raises.

They are shut down only for reading, and no peer may notice. If writing a payload fails because the connection was
closed, just before gloo reads the end of file, gloo forgets the payload (`op.ubuf` is missing where
gloo/transport/tcp/pair.cc signals `tx_`). Its sender then waits until the group's timeout, half an hour, and nothing
frees it. So writes must succeed until all members have left. Each member frees itself when its own agent says so, and
keeps duplicates of its connections open, whatever gloo and `destroy_process_group` close, until its next group is
built: that proves that the others have left as well.

A killed peer takes its connections with it. The kernel answers data that it had not read with a reset, after which no
write succeeds. So a group's connections ignore resets as long as they are held: what is written to a dead peer is
buffered, and its agent reports its death. A process that leaves a group, or ends, closes its own side first, and its
peers read that as usual.

A group's connections are known exactly. For each group, each rank listens on a port of its own and publishes its
address in the group's store under `<device>//<interface>/<rank>`: the size of a host name and the name, the size of an
address (64 bits each) and a sockaddr_storage, then for each peer the number by which the peer introduces itself when it
connects, in 64 bits; if these are missing, that number is the peer's rank. So the group's connections are those that
were accepted on its own port, and those to a peer's address.

Of two ranks, the one with the smaller address waits for the other to connect. No socket stands for that wait. But a
client that connects, sends the peer's number in its place and hangs up ends the wait with an error.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from softrun.runtime.groups import native
from softrun.runtime.groups.sockets import (
    Address,
    Ends,
    each_connection,
    ends_of,
    heed_resets,
    ignore_resets,
    in_short,
    is_room_for,
    listening_sockets,
    open_sockets,
    take_connections,
)
from softrun.runtime.groups.stores import descriptor_of

ABORT_INTERVAL_S = 0.02
ANSWER_S = 0.02
CALL_S = 0.1


class Published(NamedTuple):
    """What one rank has published in its group's store: where it listens."""

    address: Address
    numbers: tuple[int, ...]  # by which each peer introduces itself here; empty: by its rank

    @classmethod
    def parse(cls, record: bytes) -> Published:
        """Read one of gloo's records. Raises ValueError if it is not of TCP."""
        (host_size,) = struct.unpack_from("=Q", record)
        (address_size,) = struct.unpack_from("=Q", record, 8 + host_size)
        at = 16 + host_size
        (family,) = struct.unpack_from("=H", record, at)
        (port,) = struct.unpack_from("!H", record, at + 2)
        if family == socket.AF_INET:
            host = socket.inet_ntop(family, record[at + 4 : at + 8])
        elif family == socket.AF_INET6:
            host = socket.inet_ntop(family, record[at + 8 : at + 24])
        else:
            raise ValueError(f"gloo published an address of the family {family}, which is not of TCP")
        numbers = struct.iter_unpack("=q", record[at + address_size :])
        return cls(in_short((host, port)), tuple(number for (number,) in numbers))


class Connections:
    """The connections of one group. This is `rank` of `size`; `devices` are the names under which it may have gloo."""

    def __init__(self, store: Any, name: str, devices: Iterable[str], rank: int, size: int) -> None:
        self.group = f"{name!r} of {size} ranks"
        """The group, in words."""
        self._store = store
        # torch's own groups; the helper of TORCH_DISTRIBUTED_DEBUG=DETAIL; a group that was split from another.
        self._places = [f"{device}//{helper}" for device in devices for helper in ("", f"pg_wrapper:{name}/")] + [""]
        self._rank = rank
        self._size = size
        self._own: dict[Address, tuple[int, ...]] = {}
        self._peers: dict[str, Address] = {}  # by key
        self._held: dict[int, socket.socket] = {}  # by inode
        self._lock = threading.Lock()

    @property
    def addresses_known(self) -> bool:
        """Whether every rank has published its addresses."""
        return bool(self._own) and len(self._peers) == self._expected

    @property
    def held(self) -> int:
        """How many connections are kept open."""
        return len(self._held)

    @property
    def _expected(self) -> int:
        return len(self._own) * (self._size - 1)

    @property
    def remotes(self) -> set[Address]:
        """The other ends of the connections that are held, by which gloo's errors name them."""
        with self._lock:
            return {remote for one in self._held.values() if (remote := ends_of(one).remote) is not None}

    def read(self) -> None:
        """Ask the store for the addresses published so far; waits no longer than the store does."""
        for place in self._places:
            for interface in itertools.count():
                own = f"{place}{interface}/{self._rank}"
                if not self._store.check([own]):
                    break
                keys = [f"{place}{interface}/{rank}" for rank in range(self._size) if rank != self._rank]
                missing = [key for key in keys if key not in self._peers]
                if not self._store.check(missing):
                    missing = [key for key in missing if self._store.check([key])]
                numbers = Published.parse(self._store.get(own))
                peers = {key: Published.parse(record).address for key, record in self._records(missing)}
                self._own[numbers.address] = numbers.numbers
                self._peers.update(peers)

    def _records(self, keys: list[str]) -> Iterable[tuple[str, bytes]]:
        if self._store.has_extended_api():  # all at once
            return zip(keys, self._store.multi_get(keys), strict=True)
        return [(key, self._store.get(key)) for key in keys]

    def hold(self, *, is_there: Callable[[], bool] = lambda: True, but: Iterable[int] = ()) -> None:
        """Keep the open connections open until they are released, and let no write to a dead peer fail.

        They are not kept open if the limit of descriptors is near.
        """
        with self._lock:
            if not self._connects_lazily and is_room_for(self._expected):
                self._held.update(self._take(is_there, but))
            for connection in self._held.values():
                ignore_resets(connection)

    def cut(self, *, is_there: Callable[[], bool] = lambda: True, but: Iterable[int] = (), again: bool = False) -> None:
        """Make every thread that waits for one of them raise; no peer notices. Any thread may call it.

        `again`: the first time did not help. gloo drops a client that was cut before it sent its number, and waits on.
        """
        with self._lock:
            if self._connects_lazily or not is_room_for(self._expected):
                count = self._cut_each(is_there, but)
            else:
                self._held.update(self._take(is_there, but))
                count = len(self._held)
                _shut(self._held.values(), socket.SHUT_RD)
        if (again or count < self._expected) and is_there():
            self.call_in_place_of_peers(self._own)

    def cut_found(self, found: Mapping[int, socket.socket]) -> None:
        """As `cut`, for connections that were not found by their addresses."""
        _shut(found.values(), socket.SHUT_RD)
        with self._lock:
            room = is_room_for(len(found))
            close_all([one for inode, one in found.items() if not room or self._held.setdefault(inode, one) is not one])

    def _cut_each(self, is_there: Callable[[], bool], but: Iterable[int]) -> int:
        """Cut those that are held, and the others without holding them."""
        _shut(self._held.values(), socket.SHUT_RD)
        count = len(self._held)
        for _, connection in each_connection(self._ours(), {*self._held, *but}):
            with connection:
                if is_there():  # otherwise its port may belong to something else by now
                    _shut([connection], socket.SHUT_RD)
                    count += 1
        return count

    @property
    def _connects_lazily(self) -> bool:
        """TORCH_GLOO_LAZY_INIT: gloo then crashes when it leaves a group if there are duplicates of its connections."""
        return not all(self._own.values())

    def _take(self, is_there: Callable[[], bool], but: Iterable[int]) -> dict[int, socket.socket]:
        """Take duplicates of those that are not held yet. During a build, gloo replaces connections that fail."""
        if not but and len(self._held) >= self._expected:
            return {}
        found = take_connections(self._ours(), {*self._held, *but})
        if is_there():
            return found
        close_all(found.values())  # the ports of a destroyed group may belong to something else by now
        return {}

    def _ours(self) -> Callable[[Ends], bool]:
        own, peers = set(self._own), set(self._peers.values())
        return lambda ends: ends.local in own or ends.remote in peers

    def release_connections(self) -> None:
        """The group has been left: let its peers read an end of file, even if some of their data is unread."""
        with self._lock:
            held, self._held = self._held, {}
        _shut(held.values(), socket.SHUT_WR)
        for connection in held.values():
            heed_resets(connection)  # otherwise the kernel goes on sending data to a dead peer for minutes
        close_all(held.values())

    def let_go(self) -> None:
        """Close these duplicates: somebody else goes on using the connections."""
        with self._lock:
            held, self._held = self._held, {}
        close_all(held.values())

    def let_go_in_child(self) -> None:
        """In a forked child: close its copies. The parent's connections stay."""
        self._lock = threading.Lock()  # the parent's may be held
        self.let_go()

    def call_in_place_of_peers(self, listening: Mapping[Address, tuple[int, ...]]) -> None:
        """Connect in the place of peers to the addresses where this rank may wait for them, by their numbers there. If
        these are unknown they are the ranks: each of torch's groups has its own listening socket, counting from 0."""
        for address, numbers in list(listening.items()):
            for rank in range(self._size):
                if rank != self._rank:
                    number = numbers[rank] if rank < len(numbers) else rank
                    with contextlib.suppress(OSError), socket.create_connection(address, timeout=CALL_S) as caller:
                        caller.sendall(struct.pack("=q", number))


class Build:
    """A group that is being built, or its store; its connections are opened one after the other.

    `port` is the store's. `store` is None if the build makes a new connection to it.
    """

    def __init__(self, port: int | None, connections: Connections | None = None, store: Any = None) -> None:
        self.aborted = False
        self.thread = threading.get_ident()
        self.connections = connections
        self._store = store
        self._port = port
        self._before = set(open_sockets().values())
        self._settled = threading.Event()
        self._lock = threading.Lock()
        self._asking: threading.Thread | None = None

    def settle(self) -> None:
        """The build has ended, with or without a group: nothing more is cut."""
        with self._lock:
            self._settled.set()

    def abort(self) -> None:
        """Make the build fail. Any thread may call it; it does not wait."""
        with self._lock:
            if self.aborted or self._settled.is_set():
                return
            self.aborted = True
        threading.Thread(target=self._cut_until_settled, name="softrun-abort", daemon=True).start()

    def _cut_until_settled(self) -> None:
        """Cut again and again: the build may wait on any connection for an hour, and then open the next one."""
        again = False
        while not self._settled.is_set():
            answered = self._ask()
            with self._lock:
                if self._settled.is_set():
                    return
                if not answered or self._store is None:
                    self._cut_store()
                if self.connections is not None:
                    self.connections.cut(but=self._before, again=again)
                    if not answered:
                        self._cut_unpublished(self.connections)
            self._settled.wait(ABORT_INTERVAL_S)
            again = True

    def _ask(self) -> bool:
        """Ask the store for what is published. It may not answer: the building thread may be in it, with its lock."""
        if self.connections is None:
            return False
        if self._asking is None or not self._asking.is_alive():
            answered = threading.Event()
            self._asking = ask(self.connections.read, answered)
            return answered.wait(ANSWER_S)
        return False

    def _cut_store(self) -> None:
        """Cut the connections to the store, but not those that it has accepted, if this process hosts it."""
        port = self._port
        if port is None:
            return
        but = self._before if self._store is None else set[int]()
        found = take_connections(lambda ends: ends.remote is not None and ends.remote[1] == port, but)
        if len(found) > 1 and (descriptor := descriptor_of(self._store)) is not None:
            inode = open_sockets().get(descriptor)
            if inode in found:
                close_all(connection for other, connection in found.items() if other != inode)
                found = {inode: found[inode]}
        _shut(found.values())
        close_all(found.values())

    def _cut_unpublished(self, connections: Connections) -> None:
        """Without an answer it is not known which listening socket is gloo's, only that it is new since the build."""
        listening = listening_sockets(self._before)
        ports = {port for _, port in listening}
        if ports:
            connections.cut_found(take_connections(lambda ends: ends.local[1] in ports, self._before))
            connections.call_in_place_of_peers(dict.fromkeys(listening, ()))


def ask(question: Callable[[], None], answered: threading.Event) -> threading.Thread:
    """Ask in a thread of its own, since the question may never end."""

    def asking() -> None:
        with contextlib.suppress(Exception):  # the caller sees that there is no answer
            question()
            answered.set()

    return native.start(asking, "softrun-abort-asks")


def close_all(connections: Iterable[socket.socket]) -> None:
    """Close these sockets."""
    for connection in connections:
        connection.close()


def _shut(connections: Iterable[socket.socket], how: int = socket.SHUT_RDWR) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):  # it is closed already
            connection.shutdown(how)
