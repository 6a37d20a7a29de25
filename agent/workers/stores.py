"""The stores through which workers find each other: a new TCPStore for every world, hosted by an agent.

Every world has a new store on another port, so no worker ever reads the addresses of an earlier world. The last KEPT
unused stores stay open: a slow worker may be about to connect to one, and TCPStore would retry a refused port for half
an hour, its timeout, and cannot be interrupted.

Programs derive ports of their own from a world's, such as MASTER_PORT + 1 or MASTER_PORT + 2 + iteration. So the ports
of worlds are not among those that the kernel gives to clients, where any port may be a connection's or in TIME_WAIT,
and they are far apart.
"""

from __future__ import annotations

import errno
import logging
import random
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from softrun.agent.links.listeners import listening
from softrun.agent.protocol.observations import Observation, StoreLost, WorkerStoreOpened
from softrun.runtime.clock import boottime

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

logger = logging.getLogger("softrun")

KEPT = 2
ADDRESS_AWAY_S = 60.0
"""For so long a host may be without its address, as while that moves between its interfaces, or is leased anew."""
AGAIN_S = 0.25

APART = 1021
"""So far apart are the ports of the stores that are open at the same time: those between them are the users'."""
SERIES = 8
"""So many ports follow one another, and the first of them again; at most KEPT + 2 are in use."""
SPAN = APART * (SERIES + 1)
HIGHEST = 20000 + SPAN  # below the default ports of launchers and of Kubernetes' services
CLIENTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


class WorkerStores:
    """Opens and closes stores in a thread of its own, since connecting to a store may wait for the name service.

    They listen at `bind`; "" is everywhere. `lead_to` is called with the port of the first: workers that meet at a
    place that the user has named are led there.
    """

    def __init__(
        self, post: Callable[[Observation], None], bind: str, lead_to: Callable[[int], None] | None = None
    ) -> None:
        self._post = post
        self._bind = bind
        self._lead_to = lead_to
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="softrun-worker-store")
        self._stores: dict[int, TCPStore] = {}
        self._retired: deque[int] = deque()
        self._closing = threading.Event()
        self._ports = _series()

    def open(self) -> None:
        """Open a store; WorkerStoreOpened follows."""
        self._thread.submit(self._open)

    def close(self, port: int) -> None:
        """Give up the store at this port: no world uses it any more."""
        self._retired.append(port)
        if len(self._retired) > KEPT:
            self._thread.submit(self._stores.pop, self._retired.popleft())

    def close_all(self) -> None:
        """Close every open store."""
        self._closing.set()
        self._thread.submit(self._stores.clear)
        self._thread.shutdown(wait=True)

    def _open(self) -> None:
        from torch._C._distributed_c10d import TCPStore

        try:
            listener = self._listening()
            store = TCPStore(
                self._bind or "127.0.0.1",
                listener.getsockname()[1],
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
        except Exception as error:
            reason, remedy = str(error).splitlines()[0], "look at this machine's limits"
            if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
                remedy = f"give this host its address {self._bind} back, or start it with another --local_addr"
            self._post(StoreLost(f"no store for the workers can be opened ({reason}): {remedy}"))
            return
        self._stores[store.port] = store
        if self._lead_to is not None:
            self._lead_to(store.port)
            self._lead_to = None
        self._post(WorkerStoreOpened(store.port))

    def _listening(self) -> socket.socket:
        """A listener at the address of this host, which may be away for a while."""
        until, told = boottime() + ADDRESS_AWAY_S, False
        while True:
            try:
                return self._free()
            except OSError as error:
                away = error.errno == errno.EADDRNOTAVAIL and boottime() < until
                if not away or self._closing.wait(AGAIN_S):
                    raise
            if not told:
                logger.warning("this host has no address %s now: waiting for %g s for it", self._bind, ADDRESS_AWAY_S)
                told = True

    def _free(self) -> socket.socket:
        """A listener at the next port of the series that is free; at any free one if none of them is."""
        for _ in range(len(self._ports)):
            self._ports.rotate(-1)
            try:
                return listening(self._bind, self._ports[-1])
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        return listening(self._bind)


def _series() -> deque[int]:
    """Ports that no client has, in the order of their use; none if the kernel leaves no room for them."""
    try:
        lowest_of_clients = int(CLIENTS.read_text().split()[0])
    except OSError:
        return deque()
    first = min(HIGHEST, lowest_of_clients) - SPAN
    if first < 1024:  # privileged, or no port at all
        return deque()
    first += random.randrange(APART)  # several jobs may share a host
    return deque(range(first, first + APART * SERIES, APART))
