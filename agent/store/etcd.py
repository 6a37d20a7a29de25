"""A store in etcd: no node is special, and the store outlives any one of its members.

Keys, under one prefix per job:

    record                   the round; its version in etcd is the round's version, so a compare-and-swap compares that
    members/<node>/<lease_number>    under the lease of that agent; <lease_number> counts the leases that it has had

Nobody else has keys there. A key that no agent has put there is passed over. Another agent that misses one removes its
key, if its own is still there and there is no later record than the one under which it misses it. An agent whose key
was removed is taken for dead by the others: it cannot change the record any more, and comes back with a new lease at
its next renewal.

The record is under the job's own lease, which the agents that have written it keep alive. It lasts for a day after the
last of them has gone, or for a minute once the job is over, so what a job leaves behind expires. An agent that ends
revokes its own lease; the lease of a host that is dead or cut off expires.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

from softrun.agent.errors import StoreLostError
from softrun.agent.protocol.printable import printable
from softrun.agent.store.base import Change, Lease, LeaseGrant, Leases
from softrun.agent.store.etcd_client import EtcdAccess, EtcdClient, EtcdRefusedError, LeaseGoneError
from softrun.runtime.clock import boottime

JOB_LEASE_S = 24 * 3600
OVER_LEASE_S = 60  # so that all agents see that the job is over; then another job may take its name
_GETS_AT_ONCE = 100  # etcd allows 128 operations in a transaction
_LONGEST_NUMBER = 15  # digits
_NOTES_S = 60.0  # between two lines about keys of strangers

logger = logging.getLogger("softrun.store")


class EtcdStore:
    """`node` names this agent's leases; `lease_s` is asked for, and etcd may grant more (2 s at least, by default)."""

    def __init__(self, job: str, node: str, access: EtcdAccess, lease_s: float, connect_timeout_s: float) -> None:
        self._prefix = f"softrun/{quote(job, safe='', errors='surrogateescape')}/"
        self._node = node
        self._asked_s = math.ceil(lease_s)
        self._client = EtcdClient(access, connect_timeout_s)
        self._rpc = self._client.rpc
        self._lease_number = 0
        self._lease = 0
        self._removed = 0  # the number of the lease whose key was last seen to be gone
        self._next_note_at = -math.inf
        self._job_lease = int.from_bytes(hashlib.sha256(job.encode(errors="surrogateescape")).digest()[:8], "big") >> 1
        self._job_lease_due_at = math.inf  # set once this agent has written the record
        self._responses: Iterator[Any] | None = None
        self._seen = {"record": 0, "members": 0}  # the revision up to which each has been watched
        self.leases: Leases | None = self
        grant, answer = self._begin_lease()
        self._granted: LeaseGrant | None = grant
        self._see_all(answer)

    # --- the record

    def latest(self) -> bytes | None:
        return self._read()[0]

    def create(self, version: int, record: bytes) -> bytes | None:
        while True:
            try:
                stands = self._swap(version, record)
            except LeaseGoneError:
                self._grant_job_lease()
                continue
            if stands is None and version > 1:
                raise StoreLostError(
                    f"the job's record is gone from etcd (key {self._prefix}record): somebody has removed it, or "
                    f"nobody led the job for {JOB_LEASE_S // 3600} hours; start the job again"
                )
            if stands == record and self._job_lease_due_at == math.inf:
                self._renew_job_lease()
            return stands

    def wait_beyond(self, version: int) -> Change:
        while True:
            if self._responses is None:
                self._responses = self._client.watch(self._watches())
            response = next(self._responses, None)
            if response is None:
                self._responses = None  # that member of etcd was left: go on from the same revision at another
            elif response.compact_revision:
                self._responses = None
                record, answer = self._read()
                self._see_all(answer)
                return Change(record, gap=True)
            elif change := self._take(response, version):
                return change

    # --- leases

    def renew(self) -> LeaseGrant:
        granted, self._granted = self._granted, None
        if granted is not None:
            return granted  # just now
        if boottime() >= self._job_lease_due_at:
            self._renew_job_lease()
        sent_at, stands_s = self._client.keep_alive(self._lease)
        if stands_s <= 0:
            return self._begin_lease()[0]
        if self._removed == self._lease_number:
            return self._replace_lease()
        return LeaseGrant(until=sent_at + stands_s, lease_number=self._lease_number, granted_s=stands_s)

    def end(self, lease: Lease, by: int, version: int) -> None:
        rpc = self._rpc
        delete = rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=self._member_key(lease)))
        compare = [self._stands(by), self._is_newest(version)]
        self._client.call("KV", "Txn", rpc.TxnRequest(compare=compare, success=[delete]))

    def missing(self, leases: Collection[Lease]) -> set[Lease]:
        wanted = sorted(leases)
        found: set[Lease] = set()
        for begin in range(0, len(wanted), _GETS_AT_ONCE):
            part = wanted[begin : begin + _GETS_AT_ONCE]
            gets = [
                self._rpc.RequestOp(request_range=self._rpc.RangeRequest(key=self._member_key(lease), keys_only=True))
                for lease in part
            ]
            answers = self._client.call("KV", "Txn", self._rpc.TxnRequest(success=gets)).responses
            found |= {lease for lease, answer in zip(part, answers, strict=True) if answer.response_range.kvs}
        missing = set(wanted) - found
        self._look_for_own(missing)
        return missing

    # --- the end

    def leave(self, *, over: bool) -> None:
        with suppress(StoreLostError):
            if over:
                self._let_expire()
            self._client.call("Lease", "LeaseRevoke", self._rpc.LeaseRevokeRequest(ID=self._lease))

    def close(self) -> None:
        self._client.close()

    # --- keys, reads and writes

    def _key(self, name: str) -> bytes:
        return f"{self._prefix}{name}".encode()

    def _member_key(self, lease: Lease) -> bytes:
        node, lease_number = lease
        return self._key(f"members/{quote(node, safe='')}/{lease_number}")

    def _read(self) -> tuple[bytes | None, Any]:
        answer = self._client.call("KV", "Range", self._rpc.RangeRequest(key=self._key("record")))
        return (bytes(answer.kvs[0].value) if answer.kvs else None), answer

    def _swap(self, version: int, record: bytes) -> bytes | None:
        rpc, key = self._rpc, self._key("record")
        request = rpc.TxnRequest(
            compare=[self._is_newest(version - 1), self._stands(self._lease_number)],
            success=[rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=record, lease=self._job_lease))],
            failure=[rpc.RequestOp(request_range=rpc.RangeRequest(key=key))],
        )
        answer = self._client.call("KV", "Txn", request)
        if answer.succeeded:
            return record
        found = answer.responses[0].response_range.kvs
        return bytes(found[0].value) if found else None

    def _is_newest(self, version: int) -> Any:
        """The condition that there is no later record than this one."""
        compare = self._rpc.Compare
        return compare(key=self._key("record"), target=compare.VERSION, result=compare.EQUAL, version=version)

    def _stands(self, lease_number: int) -> Any:
        """The condition that this lease of this agent's has not ended."""
        compare, key = self._rpc.Compare, self._member_key((self._node, lease_number))
        return compare(key=key, target=compare.VERSION, result=compare.GREATER, version=0)

    def _begin_lease(self) -> tuple[LeaseGrant, Any]:
        """Take a new lease, because there was none or it has expired; returns it with etcd's last answer."""
        self._lease_number += 1
        sent_at = boottime()
        granted = self._client.call("Lease", "LeaseGrant", self._rpc.LeaseGrantRequest(TTL=self._asked_s))
        self._lease = int(granted.ID)
        key = self._member_key((self._node, self._lease_number))
        try:
            answer = self._client.call("KV", "Put", self._rpc.PutRequest(key=key, lease=self._lease))
        except LeaseGoneError:
            return self._begin_lease()  # etcd was away for longer than that
        return LeaseGrant(until=sent_at + granted.TTL, lease_number=self._lease_number, granted_s=granted.TTL), answer

    def _replace_lease(self) -> LeaseGrant:
        """Take a new lease, because the key of the present one was removed: to the others that lease has expired."""
        logger.warning("this agent's key was removed from etcd: it takes a new lease")
        removed = self._lease
        grant, _ = self._begin_lease()
        with suppress(LeaseGoneError):
            self._client.call("Lease", "LeaseRevoke", self._rpc.LeaseRevokeRequest(ID=removed))
        return grant

    def _renew_job_lease(self) -> None:
        _, stands_s = self._client.keep_alive(self._job_lease)
        if stands_s <= 0:
            self._grant_job_lease()
        self._job_lease_due_at = boottime() + JOB_LEASE_S / 100

    def _grant_job_lease(self) -> None:
        grant = self._rpc.LeaseGrantRequest(TTL=JOB_LEASE_S, ID=self._job_lease)
        with suppress(EtcdRefusedError):  # another agent was faster
            self._client.call("Lease", "LeaseGrant", grant)

    def _let_expire(self) -> None:
        """Put what the job leaves behind under a short lease. Every agent that sees the job's end does so."""
        rpc = self._rpc
        lease = self._client.call("Lease", "LeaseGrant", rpc.LeaseGrantRequest(TTL=OVER_LEASE_S)).ID
        key = self._key("record")
        there = rpc.Compare(key=key, target=rpc.Compare.VERSION, result=rpc.Compare.GREATER, version=0)
        put = rpc.RequestOp(request_put=rpc.PutRequest(key=key, ignore_value=True, lease=lease))
        self._client.call("KV", "Txn", rpc.TxnRequest(compare=[there], success=[put]))

    def _watches(self) -> list[Any]:
        members = self._key("members/")
        request = self._rpc.WatchCreateRequest
        return [
            request(key=self._key("record"), start_revision=self._seen["record"] + 1),
            # Only deletions: otherwise N agents that join would cause N * N events.
            request(
                key=members,
                range_end=members[:-1] + b"0",  # what follows "/"
                start_revision=self._seen["members"] + 1,
                filters=[request.NOPUT],
            ),
        ]

    def _take(self, response: Any, version: int) -> Change | None:
        """Return the change in this response; None if it only confirms that the watch has begun."""
        record: bytes | None = None
        expired: list[Lease] = []
        for event in response.events:
            name = bytes(event.kv.key).removeprefix(self._prefix.encode())
            self._seen["record" if name == b"record" else "members"] = int(event.kv.mod_revision)
            if name != b"record":
                expired += self._leases_of(name)
            elif event.kv.version > version:
                record = bytes(event.kv.value)
        self._look_for_own(expired)
        return Change(record, tuple(expired)) if record or expired else None

    def _leases_of(self, name: bytes) -> list[Lease]:
        """The lease of a member's key; nothing if it is the key of a stranger."""
        try:
            kind, node, number = name.decode("ascii").split("/")
        except ValueError:
            kind = node = number = ""
        named = kind == "members" and node and quote(unquote(node), safe="") == node
        if named and number.isdigit() and len(number) <= _LONGEST_NUMBER:
            return [(unquote(node), int(number))]
        if boottime() >= self._next_note_at:
            self._next_note_at = boottime() + _NOTES_S
            shown = printable(name.decode(errors="backslashreplace"))
            logger.warning(
                "etcd has keys among this job's that are no agent's, such as %s: they are passed over", shown
            )
        return []

    def _look_for_own(self, leases: Collection[Lease]) -> None:
        """Whether this agent's own key is among those that are gone."""
        if (self._node, self._lease_number) in leases:
            self._removed = self._lease_number

    def _see_all(self, answer: Any) -> None:
        self._seen = dict.fromkeys(self._seen, int(answer.header.revision))
