"""The store: what all agents of a job share. It holds one record and one count, and pushes changes of the record.

`Store` is the contract; every implementation passes the same tests. Its methods block and belong to threads:
`StoreThreads` runs them beside the driver's loop, so a store that is slow or away never stops an agent from watching
its workers.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Protocol

from softrun.agent.codec import decode_round, encode_round
from softrun.agent.errors import ProtocolError, StoreLostError
from softrun.agent.model import Round
from softrun.agent.observations import LeaderBeatSeen, Observation, RecordSeen, StoreLost, StoreReady

logger = logging.getLogger("softrun.store")


class Store(Protocol):
    """One job's corner of a store. Every method raises StoreLostError once the store is gone, or closed."""

    hosted: bool
    """It lives inside this process, and ends with it."""

    def latest(self) -> bytes | None:
        """The newest record; None where there is none."""

    def create(self, version: int, record: bytes) -> bytes:
        """Put `record` in place as `version`, if that version is not there yet; return what stands there then."""

    def wait_beyond(self, version: int) -> bytes:
        """Block until there is a newer record than `version`; return the newest. One thread at a time."""

    def beat(self) -> int:
        """Raise the leader's count by one; return it."""

    def beats(self) -> int:
        """The leader's count."""

    def leave(self) -> None:
        """This agent is done. A store that is hosted here stays until the others are done too, or for a second."""

    def close(self) -> None:
        """End; a thread that is blocked in `wait_beyond` is freed at once. Called from any thread, and once."""


class StoreThreads:
    """Runs a store in two threads, one that calls and one that watches. `observe` is called from both."""

    def __init__(self, open_store: Callable[[], Store], observe: Callable[[Observation], None]) -> None:
        self._open_store = open_store
        self._observe = observe
        self._calls: SimpleQueue[Callable[[Store], object] | None] = SimpleQueue()
        self._store: Store | None = None
        self._closing = threading.Event()
        self._caller = threading.Thread(target=self._call, name="softrun-store", daemon=True)
        self._watcher: threading.Thread | None = None

    def start(self) -> None:
        self._caller.start()

    def propose(self, round_: Round) -> None:
        self._calls.put(lambda store: self._saw(store.create(round_.version, encode_round(round_))))

    def beat(self) -> None:
        self._calls.put(lambda store: self._observe(LeaderBeatSeen(store.beat())))

    def read_beats(self) -> None:
        self._calls.put(lambda store: self._observe(LeaderBeatSeen(store.beats())))

    def close(self, wait_s: float = 5.0) -> None:
        """Finish what was asked for and close; a store that does not answer is left behind after `wait_s`."""
        self._calls.put(None)
        if self._store is None:
            self._closing.set()  # it still connects; the thread looks here when it is through
            return
        self._caller.join(wait_s)
        self._closing.set()
        if self._store is not None:
            self._store.close()
        if self._watcher is not None:
            self._watcher.join(wait_s)

    def _call(self) -> None:
        with self._reporting_loss():
            self._store = store = self._open_store()
            if self._closing.is_set():
                store.close()
                return
            self._observe(StoreReady(store.hosted))
            record = store.latest()
            version = self._saw(record)
            self._watcher = threading.Thread(target=self._watch, args=(store, version), daemon=True)
            self._watcher.start()
            while (call := self._calls.get()) is not None:
                call(store)
            store.leave()

    def _watch(self, store: Store, version: int) -> None:
        with self._reporting_loss():
            while True:
                version = self._saw(store.wait_beyond(version))

    def _saw(self, record: bytes | None) -> int:
        round_ = decode_round(record) if record is not None else None
        self._observe(RecordSeen(round_))
        return round_.version if round_ is not None else 0

    @contextlib.contextmanager
    def _reporting_loss(self) -> Iterator[None]:
        try:
            yield
        except (StoreLostError, ProtocolError) as error:
            reason = str(error)
        except Exception as error:
            logger.debug("the store failed", exc_info=True)
            reason = f"the store failed ({type(error).__name__}: {error}): set SOFTRUN_DEBUG=1 to see where"
        else:
            return
        if not self._closing.is_set():
            self._observe(StoreLost(reason))
