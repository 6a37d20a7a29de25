"""Where the ranks of one world meet: the store that its agents opened for it, which ends with the world.

The main thread never sits in the store: another thread does, and the main thread waits for that one in short pieces, so
that it can be interrupted and goes on to show that it is alive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from softrun.runtime.events import WorkerInfo
from softrun.runtime.progress import BEAT_INTERVAL_S

Result = TypeVar("Result")

_FOREVER = timedelta(days=365)
_PASSED, _GIVEN_UP = b"passed", b"given up"  # what becomes of a barrier


class Meeting:
    """The keys of one world; `name` makes them one wrapper's. It connects when it is first used."""

    def __init__(self, info: WorkerInfo) -> None:
        self._info = info
        self._store: Any = None

    def barrier(self, name: str, count: int, timeout: timedelta | None = None) -> None:
        """Wait until `count` ranks are here. Raises TimeoutError, and ConnectionError where the world has ended.

        Where it raises TimeoutError on one rank, it does on all: nobody passes it after that.
        """

        def meet() -> None:
            if self._connected().add(f"{name}/here", 1) == count:
                self._decide(name, _PASSED)

        self._do(meet)
        try:
            self.await_barrier(name, timeout)
        except TimeoutError:
            other = Meeting(self._info)  # the connection of this one is waiting
            if self._do(lambda: other._decide(name, _GIVEN_UP)) != _PASSED:
                raise

    def await_barrier(self, name: str, timeout: timedelta | None = None) -> None:
        """Wait until the others have passed it."""
        if self.wait_for(f"{name}/outcome", timeout) != _PASSED:
            raise TimeoutError("this rank came after another had given up waiting for it")

    def wait_for(self, key: str, timeout: timedelta | None = None) -> bytes:
        """The value of a key, once it has one."""
        return self._do(lambda: bytes(self._awaited(key)), timeout)

    def set(self, key: str, value: bytes) -> None:
        self._do(lambda: self._connected().set(key, value))

    def gather(self, keys: Sequence[str]) -> list[bytes]:
        """The values of all of these, once they are there."""

        def get() -> list[bytes]:
            store = self._connected()
            for key in keys:
                store.wait([key], _FOREVER)
            return [bytes(value) for value in store.multi_get(list(keys))]

        return self._do(get)

    def _decide(self, name: str, outcome: bytes) -> bytes:
        """What has become of a barrier: whoever is first decides."""
        return bytes(self._connected().compare_set(f"{name}/outcome", "", outcome.decode()))

    def _awaited(self, key: str) -> Any:
        store = self._connected()
        store.wait([key], _FOREVER)
        return store.get(key)

    def _connected(self) -> Any:
        if self._store is None:
            import torch.distributed as dist

            host, port = self._info.master_addr, self._info.master_port
            # torch's stubs hide both.
            store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]
            self._store = dist.PrefixStore("softrun/inprocess", store)  # type: ignore[attr-defined]
        return self._store

    @staticmethod
    def _do(act: Callable[[], Result], timeout: timedelta | None = None) -> Result:
        done = threading.Event()
        outcome: list[Result | Exception] = []

        def run() -> None:
            try:
                outcome.append(act())
            except Exception as error:
                outcome.append(error)
            done.set()

        threading.Thread(target=run, name="softrun-meeting", daemon=True).start()
        waited = 0.0
        while not done.wait(BEAT_INTERVAL_S):
            waited += BEAT_INTERVAL_S
            if timeout is not None and waited >= timeout.total_seconds():
                raise TimeoutError(f"not all ranks were there within {timeout.total_seconds():g} s")
        if isinstance(outcome[0], Exception):
            raise ConnectionError(f"the meeting point of this world is gone: {outcome[0]}") from outcome[0]
        return outcome[0]
