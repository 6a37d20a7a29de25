"""A store in memory, for agents in one process: the reference for the contract, used in tests."""

from __future__ import annotations

import threading

from softrun.agent.errors import StoreLostError
from softrun.agent.store.base import Change


class MemoryStore:
    """Agents share a store by sharing the object."""

    leases = None

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._records: list[bytes] = []
        self._closed = False

    def latest(self) -> bytes | None:
        with self._alive():
            return self._records[-1] if self._records else None

    def create(self, version: int, record: bytes) -> bytes:
        with self._alive():
            if version == len(self._records) + 1:
                self._records.append(record)
                self._changed.notify_all()
            # A version that would leave a gap was made from a record that does not exist.
            return self._records[min(version, len(self._records)) - 1]

    def wait_beyond(self, version: int) -> Change:
        with self._alive():
            self._changed.wait_for(lambda: self._closed or len(self._records) > version)
            if self._closed:
                raise StoreLostError("the store in memory was closed")
            return Change(self._records[-1])

    def leave(self, *, over: bool) -> None:
        pass  # nobody hosts it

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _alive(self) -> threading.Condition:
        if self._closed:
            raise StoreLostError("the store in memory was closed")
        return self._changed
