"""The store: what keeps the one record of a job if the agents do not keep it themselves, and pushes its changes.

Newcomers that cannot reach any agent must still learn whether any is left. A store outlives every agent, so it holds
leases for that (`Leases`), and pushes which of them have expired.

`Store` is the contract. Its methods block and belong to threads: `StoreThreads` runs them beside the driver's loop, so
a store that is slow or away never stops an agent from watching its workers.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

from softrun.agent.errors import SoftrunError
from softrun.agent.protocol.codec import decode_round, encode_round
from softrun.agent.protocol.model import Phase, Round
from softrun.agent.protocol.observations import (
    LeaseRenewed,
    LeasesExpired,
    Observation,
    RecordSeen,
    StoreLost,
)

logger = logging.getLogger("softrun.store")


Lease = tuple[str, int]
"""A node, and the number of the lease, counted from the node's first, 1."""


@dataclass(frozen=True, slots=True)
class Change:
    """What has happened to a store."""

    record: bytes | None  # a newer one
    expired: tuple[Lease, ...] = ()
    gap: bool = False  # leases may have expired without being named


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """This agent's lease stands at least until `until`, by the agent's clock: nobody can have taken its place."""

    until: float
    lease_number: int
    granted_s: float


class Leases(Protocol):
    """Proof that a node lives, which reaches all others even if the node itself cannot."""

    def renew(self) -> LeaseGrant:
        """Renew this agent's lease, or take a new one if it has expired."""

    def end(self, lease: Lease, by: int, version: int) -> None:
        """End the lease of another node, if this agent's own one of number `by` and record `version` still stand."""

    def missing(self, leases: Collection[Lease]) -> set[Lease]:
        """Return those that have expired or were ended."""


class Store(Protocol):
    """One job's corner of a store. Every method raises StoreLostError once the store is gone, or closed."""

    leases: Leases | None
    """A store with leases comes back if it was away, and its methods wait for that."""

    def latest(self) -> bytes | None:
        """The newest record; None if there is none."""

    def create(self, version: int, record: bytes) -> bytes | None:
        """Store `record` as `version`, unless that version exists; return the newest record then.

        Without a lease of this agent's that stands nothing is stored.
        """

    def wait_beyond(self, version: int) -> Change:
        """Block until there is a newer record than `version`, or a lease has expired. One thread at a time."""

    def leave(self, *, over: bool) -> None:
        """This agent is done. If `over`, so is the job: nobody changes its record any more."""

    def close(self) -> None:
        """Close the store, which frees a thread blocked in `wait_beyond` at once. Call it once, from any thread."""


class StoreThreads:
    """Runs a store in threads: one calls, one watches, one keeps the lease. `observe` is called from all of them.

    Of the requests that have not begun only the newest of each kind is kept, so nothing piles up while a store is away.
    """

    def __init__(self, open_store: Callable[[], Store], observe: Callable[[Observation], None]) -> None:
        self._open_store = open_store
        self._observe = observe
        self._store: Store | None = None
        self._round: Round | None = None  # the newest that was watched
        self._closing = threading.Event()
        self._calls = _Requests()
        self._renewals = _Requests()
        self._caller = threading.Thread(target=self._call, name="softrun-store", daemon=True)
        self._others: list[threading.Thread] = []

    def start(self) -> None:
        """Open the store, and watch it; RecordSeen follows, after LeaseRenewed if it has leases, or StoreLost."""
        self._caller.start()

    def propose(self, round_: Round) -> None:
        """Create this record; RecordSeen follows with the record that is stored then."""
        self._calls.put("propose", lambda store: self._saw(store.create(round_.version, encode_round(round_))))

    def renew(self) -> None:
        """Renew the lease; LeaseRenewed follows."""
        self._renewals.put("renew", self._renew)

    def end_lease(self, lease: Lease, by: int, version: int) -> None:
        """End the lease of another node, if this agent's own one of number `by` and record `version` stand;
        LeasesExpired follows."""
        self._calls.put(f"end {lease}", lambda store: self._end_lease(store, lease, by, version))

    def close(self, wait_s: float = 5.0) -> None:
        """Finish the requests and close. A store that does not answer is abandoned after `wait_s` seconds."""
        self._renewals.end()
        self._calls.end()
        if self._store is None:
            self._closing.set()  # it is still connecting; the thread checks this afterwards
            return
        self._caller.join(wait_s)
        self._closing.set()
        self._store.close()
        for thread in self._others:
            thread.join(wait_s)

    def _call(self) -> None:
        with self._reporting_loss():
            self._store = store = self._open_store()
            if self._closing.is_set():
                store.close()
                return
            if store.leases is not None:
                self._renew(store)
                self._begin(self._serve, store, self._renewals)
            version = self._saw(store.latest())
            self._begin(self._watch, store, version)
            self._serve(store, self._calls)
            store.leave(over=self._round is not None and self._round.phase is Phase.CLOSED)

    def _begin(self, run: Callable[..., None], *args: object) -> None:
        def reporting() -> None:
            with self._reporting_loss():
                run(*args)

        thread = threading.Thread(target=reporting, name=f"softrun-store{run.__name__}", daemon=True)
        self._others.append(thread)
        thread.start()

    def _serve(self, store: Store, requests: _Requests) -> None:
        while (call := requests.take()) is not None:
            call(store)

    def _watch(self, store: Store, version: int) -> None:
        if version:
            self._look_for_expired(store)
        while True:
            change = store.wait_beyond(version)
            if change.record is not None:
                version = self._saw(change.record)
            if change.expired:
                self._observe(LeasesExpired(change.expired))
            if change.gap:
                self._look_for_expired(store)

    def _look_for_expired(self, store: Store) -> None:
        """Look for expired leases of the record's members; other nodes are not missed."""
        if store.leases is not None and self._round is not None:
            missing = store.leases.missing([(member.node, member.lease_number) for member in self._round.members])
            if missing:
                self._observe(LeasesExpired(tuple(sorted(missing))))

    def _renew(self, store: Store) -> None:
        if store.leases is None:
            raise AssertionError("a lease was to be renewed in a store that has none")
        grant = store.leases.renew()
        self._observe(LeaseRenewed(grant.until, grant.lease_number, grant.granted_s))

    def _end_lease(self, store: Store, lease: Lease, by: int, version: int) -> None:
        if store.leases is None:
            raise AssertionError("a lease was to be ended in a store that has none")
        store.leases.end(lease, by, version)

    def _saw(self, record: bytes | None) -> int:
        round_ = decode_round(record) if record is not None else None
        self._round = round_
        self._observe(RecordSeen(round_))
        return round_.version if round_ is not None else 0

    @contextlib.contextmanager
    def _reporting_loss(self) -> Iterator[None]:
        try:
            yield
        except SoftrunError as error:
            reason = str(error)
        except Exception as error:
            logger.debug("the store failed", exc_info=True)
            reason = f"the store failed ({type(error).__name__}: {error}): set SOFTRUN_DEBUG=1 to see where"
        else:
            return
        if not self._closing.is_set():
            self._observe(StoreLost(reason))


class _Requests:
    """The requests to a store: the newest of each kind, in the order in which the kinds were first requested."""

    def __init__(self) -> None:
        self._waiting: dict[str, Callable[[Store], object]] = {}
        self._changed = threading.Condition()
        self._ended = False

    def put(self, kind: str, call: Callable[[Store], object]) -> None:
        with self._changed:
            self._waiting[kind] = call
            self._changed.notify()

    def end(self) -> None:
        """No more will come."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def take(self) -> Callable[[Store], object] | None:
        """The next one, once there is one; None after the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            return self._waiting.pop(next(iter(self._waiting))) if self._waiting else None
