"""The stores through which workers find each other: one fresh TCPStore for every world, hosted by an agent.

A fresh store (another port) in every world means that no worker ever reads the addresses of an earlier one. Closing a
store frees workers that still wait in it for somebody who will not come.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from softrun.agent.observations import Observation, StoreLost, WorkerStoreOpened

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore


class WorkerStores:
    """Opens and closes in a thread of its own, since a store's own connection may wait for the name service."""

    def __init__(self, post: Callable[[Observation], None]) -> None:
        self._post = post
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="softrun-worker-store")
        self._stores: dict[int, TCPStore] = {}

    def open(self) -> None:
        """WorkerStoreOpened follows."""
        self._thread.submit(self._open)

    def close(self, port: int) -> None:
        self._thread.submit(self._stores.pop, port)

    def close_all(self) -> None:
        self._thread.submit(self._stores.clear)
        self._thread.shutdown(wait=True)

    def _open(self) -> None:
        from torch._C._distributed_c10d import TCPStore

        try:
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        except Exception as error:
            reason = str(error).splitlines()[0]
            self._post(StoreLost(f"no store for the workers can be opened ({reason}): look at this machine's limits"))
            return
        self._stores[store.port] = store
        self._post(WorkerStoreOpened(store.port))
