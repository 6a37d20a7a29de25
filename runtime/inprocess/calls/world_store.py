"""The store through which the ranks of one world meet: an agent hosts it, and it ends with the world.

The main thread never waits in the store itself. Another thread does, and the main thread waits for that one in short
pieces, so it can be interrupted and still shows progress.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from softrun.runtime.channel.progress import BEAT_INTERVAL_S
from softrun.runtime.events import WorkerInfo
from softrun.runtime.groups import native
from softrun.runtime.groups.stores import disconnect, own_store
from softrun.runtime.inprocess.store import IterationStore

Result = TypeVar("Result")

_FOREVER = timedelta(days=365)
_ANSWER = timedelta(minutes=5)  # as torch has it
_ATTEMPT = timedelta(seconds=2)
_GIVEN_UP = b"given up"  # a barrier's outcome; if it was passed, the largest number


class WorldStore:
    """The keys of one world. It connects on first use, and again after a call that was interrupted."""

    def __init__(self, info: WorkerInfo) -> None:
        self._info = info
        self._connection = _Connection(info)

    def barrier(self, name: str, count: int, timeout: timedelta | None = None, number: int = 0) -> int:
        """Wait until `count` ranks are here; the largest number that one of them brought.

        Raises TimeoutError, or ConnectionError if the world has ended. If it raises TimeoutError on one rank, it does
        on all: no rank passes it after that.
        """

        def meet(store: Any) -> None:
            _raise(store, f"{name}/number", number)
            if store.add(f"{name}/here", 1) == count:
                _decide(store, name, store.get(f"{name}/number"))

        self._do(meet)
        try:
            return self.await_barrier(name, timeout)
        except TimeoutError:
            outcome = self._do(lambda store: _decide(store, name, _GIVEN_UP))
            if outcome == _GIVEN_UP:
                raise
            return int(outcome)

    def await_barrier(self, name: str, timeout: timedelta | None = None) -> int:
        """Wait until the others have passed a barrier; the largest number that one of them brought."""
        outcome = self.wait_for(f"{name}/outcome", timeout)
        if outcome == _GIVEN_UP:
            raise TimeoutError("this rank arrived after another had stopped waiting for it")
        return int(outcome)

    def close(self) -> None:
        """Close the connection, and connect again on the next use."""
        self._connection = _Connection(self._info)

    def wait_for(self, key: str, timeout: timedelta | None = None) -> bytes:
        """The value of a key, once it has one."""

        def get(store: Any) -> bytes:
            store.wait([key], _FOREVER)
            return bytes(store.get(key))

        return self._do(get, timeout)

    def set(self, key: str, value: bytes) -> None:
        """Write `value`. Raises ConnectionError once the world is over."""
        self._do(lambda store: store.set(key, value))

    def gather(self, keys: Sequence[str]) -> list[bytes]:
        """The values of all these keys, once they all have one."""

        def get(store: Any) -> list[bytes]:
            for key in keys:
                store.wait([key], _FOREVER)
            return [bytes(value) for value in store.multi_get(list(keys))]

        return self._do(get)

    def keys(self, prefix: str) -> IterationStore:
        """The keys that begin with `prefix`, as a store."""
        return IterationStore(self._do, prefix)

    def _do(self, act: Callable[[Any], Result], timeout: timedelta | None = None) -> Result:
        """Act in a thread, which is recalled if this is interrupted."""
        connection = self._connection
        done = threading.Event()
        outcome: list[Result | Exception] = []

        def run() -> None:
            try:
                outcome.append(act(connection.store()))
            except Exception as error:
                outcome.append(error)
            done.set()

        thread = native.start(run, "softrun-world-store", recall=connection.end)
        try:
            _await(done, thread, timeout)
        except BaseException:
            connection.end()
            self._connection = _Connection(self._info)
            raise
        if isinstance(outcome[0], Exception):
            raise ConnectionError(f"the meeting point of this world is gone: {outcome[0]}") from outcome[0]
        return outcome[0]


class _Connection:
    def __init__(self, info: WorkerInfo) -> None:
        self._info = info
        self._store: Any = None
        self._ended = False

    def store(self) -> Any:
        """The store, connected if need be. Only one thread at a time may call it."""
        if self._store is None:
            self._store = self._connect()
        if self._ended:
            disconnect(self._store)
        return self._store

    def end(self) -> None:
        """Make a thread that waits in the store raise, at once or when it fails to connect. Any thread may call it."""
        self._ended = True
        if self._store is not None:
            disconnect(self._store)

    def _connect(self) -> Any:
        """Connect in short attempts: torch would try to reach a store that is gone until the timeout."""
        import torch.distributed as dist

        give_up_at = time.monotonic() + _ANSWER.total_seconds()
        while True:
            try:
                store = own_store(
                    host_name=self._info.master_addr,
                    port=self._info.master_port,
                    is_master=False,
                    wait_for_workers=False,
                    timeout=_ATTEMPT,
                )
            except RuntimeError:
                if self._ended or time.monotonic() > give_up_at:
                    raise
            else:
                store.set_timeout(_ANSWER)
                return dist.PrefixStore("softrun/inprocess", store)  # type: ignore[attr-defined]  # torch's stubs hide it


def _decide(store: Any, name: str, outcome: bytes) -> bytes:
    """Decide a barrier's outcome: the first rank to write it does. Returns it."""
    return bytes(store.compare_set(f"{name}/outcome", "", outcome.decode()))


def _raise(store: Any, key: str, number: int) -> None:
    """Raise the number at a key to this one, if this one is larger."""
    known = ""
    while int(found := store.compare_set(key, known, str(number))) < number:
        known = found.decode()


def _await(done: threading.Event, thread: threading.Thread, timeout: timedelta | None) -> None:
    waited = 0.0
    while not done.wait(BEAT_INTERVAL_S):
        waited += BEAT_INTERVAL_S
        if timeout is not None and waited >= timeout.total_seconds():
            raise TimeoutError(f"not all ranks arrived within {timeout.total_seconds():g} s")
        if not thread.is_alive() and not done.is_set():
            raise ConnectionError("this process ends, and calls nobody any more")
