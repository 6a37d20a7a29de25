"""The store in etcd against a real one, and what can befall it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest
from etcd_stores import Open, watching, write
from values import member
from values import opened as opened_round

from local_etcd import LocalEtcd
from softrun.agent.errors import StoreLostError
from softrun.agent.protocol.codec import encode_round
from softrun.agent.protocol.observations import LeaseRenewed, LeasesExpired, Observation, RecordSeen, StoreLost
from softrun.agent.store.base import Change, StoreThreads
from softrun.agent.store.etcd import EtcdStore
from softrun.agent.store.etcd_client import EtcdAccess, _event_loop, _write, parse_endpoints

pytestmark = pytest.mark.etcd


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalEtcd]:
    """One member that this test may harm."""
    with LocalEtcd(tmp_path) as etcd:
        yield etcd


@pytest.fixture
def three(tmp_path: Path) -> Iterator[LocalEtcd]:
    """Three members that this test may harm."""
    with LocalEtcd(tmp_path, 3) as etcd:
        yield etcd


# --- leases


def test_a_lease_expires_while_its_owner_is_stopped(etcd: LocalEtcd, open_at: Open) -> None:
    owner, other = open_at(etcd, "owner", lease_s=1), open_at(etcd)
    changes = watching(other)
    first = owner.renew()
    assert first.granted_s == 2, "the smallest that etcd grants with its default timing"
    assert other.missing([("owner", 1), ("owner", 2)]) == {("owner", 2)}
    change = changes.get(timeout=10)  # the owner does nothing
    assert change.expired == (("owner", 1),)
    assert time.monotonic() > first.until, "nobody is told before the owner knows"
    second = owner.renew()
    assert second.lease_number == 2
    assert other.missing([("owner", 1), ("owner", 2)]) == {("owner", 1)}


def test_who_leaves_is_told_at_once(etcd: LocalEtcd, open_at: Open) -> None:
    leaver, other = open_at(etcd, "a/b c", lease_s=60), open_at(etcd)
    changes = watching(other)
    leaver.leave(over=False)
    assert changes.get(timeout=5).expired == (("a/b c", 1),)


def test_a_lease_that_another_agent_ends_is_gone_for_all_and_its_owner_takes_the_next(
    etcd: LocalEtcd, open_at: Open
) -> None:
    owner, other = open_at(etcd, "owner", lease_s=60), open_at(etcd, "other", lease_s=60)
    owner.renew()
    changes = watching(other)
    other.end(("owner", 1), by=1, version=0)
    assert changes.get(timeout=5).expired == (("owner", 1),)
    write(other, 1)
    assert owner.create(2, b"mine") == b"1", "it has no say until it knows"
    owner.missing([("owner", 1)])  # as its watch tells it
    assert owner.renew().lease_number == 2
    write(owner, 2)
    owner.end(("other", 1), by=1, version=2)  # asked for before it knew
    assert not other.missing([("other", 1)])


def test_a_lease_ends_only_under_the_record_under_which_its_node_was_missed(etcd: LocalEtcd, open_at: Open) -> None:
    """What is asked for may come late, when the node works in a world that follows."""
    owner, other = open_at(etcd, "owner", lease_s=60), open_at(etcd, "other", lease_s=60)
    write(owner, 1)
    write(owner, 2)
    other.end(("owner", 1), by=1, version=1)
    assert not other.missing([("owner", 1)])
    other.end(("owner", 1), by=1, version=2)
    assert other.missing([("owner", 1)])


def test_of_two_that_end_each_others_leases_one_is_left(etcd: LocalEtcd, open_at: Open) -> None:
    first, second = open_at(etcd, "first", lease_s=60), open_at(etcd, "second", lease_s=60)
    first.end(("second", 1), by=1, version=0)
    second.end(("first", 1), by=1, version=0)
    assert first.missing([("first", 1), ("second", 1)]) == {("second", 1)}


def test_who_has_no_lease_writes_no_first_record(etcd: LocalEtcd, open_at: Open) -> None:
    late, other = open_at(etcd, "late", lease_s=60), open_at(etcd, "other", lease_s=60)
    other.end(("late", 1), by=1, version=0)
    assert late.create(1, b"mine") is None
    assert other.latest() is None


def test_many_leases_are_looked_up(etcd: LocalEtcd, open_at: Open) -> None:
    store = open_at(etcd, "here")
    leases = [(f"n{number}", 1) for number in range(250)]
    assert store.missing([*leases, ("here", 1)]) == set(leases)


def test_who_comes_late_is_told_which_members_are_gone(etcd: LocalEtcd, open_at: Open) -> None:
    here = open_at(etcd, "here", lease_s=60)
    world = opened_round(replace(member("here"), lease_number=1), replace(member("gone"), lease_number=3))
    here.create(1, encode_round(world))
    seen: SimpleQueue[Observation] = SimpleQueue()
    threads = StoreThreads(lambda: open_at(etcd, "late"), seen.put)
    threads.start()
    found = []
    while not found or not isinstance(found[-1], LeasesExpired):
        found.append(seen.get(timeout=10))
    assert found[-1] == LeasesExpired((("gone", 3),))
    assert any(isinstance(each, LeaseRenewed) for each in found)
    threads.close()


# --- watching


def test_a_watch_goes_on_over_a_compaction(own: LocalEtcd, open_at: Open) -> None:
    writer, reader, gone = open_at(own), open_at(own), open_at(own, "gone", lease_s=60)
    changes = watching(reader)
    write(writer, 1)
    assert changes.get(timeout=5).record == b"1"
    own.signal(0, signal.SIGSTOP)  # the watch breaks, and what it missed is compacted before it is back
    leave_member(reader)
    own.signal(0, signal.SIGCONT)
    for version in range(2, 30):
        write(writer, version)
    gone.leave(over=False)
    own.ctl("compact", own.ctl("get", "x", "-w", "fields").split('"Revision" : ')[1].split()[0])
    while changes.get(timeout=10).record != b"29":
        pass  # who is gone may be told before and after it, or not at all
    write(writer, 30)
    while changes.get(timeout=10).record != b"30":
        pass
    assert reader.missing([("gone", 1)]) == {("gone", 1)}


def test_a_watch_that_begins_in_what_was_compacted_says_so(own: LocalEtcd, open_at: Open) -> None:
    writer, reader = open_at(own), open_at(own)
    for version in range(1, 10):
        write(writer, version)
    own.ctl("compact", own.ctl("get", "x", "-w", "fields").split('"Revision" : ')[1].split()[0])
    changes = watching(reader)
    assert changes.get(timeout=10) == Change(b"9", gap=True)
    write(writer, 10)
    assert changes.get(timeout=10).record == b"10"


def test_nothing_is_missed_while_etcd_is_away(own: LocalEtcd, open_at: Open) -> None:
    writer, reader, leaver = open_at(own), open_at(own), open_at(own, "leaver", lease_s=60)
    changes = watching(reader)
    own.kill(0)
    own.start_again(0)
    leaver.leave(over=False)
    write(writer, 1)
    seen = [changes.get(timeout=15), changes.get(timeout=15)]  # two watches have no common order while they catch up
    assert sorted(seen, key=str) == [Change(None, (("leaver", 1),)), Change(b"1")]


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "silent"])
def test_the_leader_of_etcd_is_lost(three: LocalEtcd, open_at: Open, fault: int) -> None:
    writer, reader = open_at(three, lease_s=60), open_at(three, lease_s=60)
    changes = watching(reader)
    leader = three.leader()
    three.signal(leader, fault)
    began = time.monotonic()
    for version in range(1, 10):
        write(writer, version)
    while reader.renew().until < began + 60:  # what makes a watch leave a silent member
        pass
    newest = 0
    while newest < 9:
        newest = int(changes.get(timeout=15).record or newest)
    if fault == signal.SIGSTOP:
        three.signal(leader, signal.SIGCONT)
        write(writer, 10)
        assert changes.get(timeout=15).record == b"10"


def test_a_swap_whose_answer_was_lost_is_won(etcd: LocalEtcd, open_at: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_at(etcd)
    original, lost = store._swap, []

    def swap(version: int, record: bytes) -> bytes | None:
        if not lost:
            lost.append(original(version, record))  # it is asked again, as after a timeout
        return original(version, record)

    monkeypatch.setattr(store, "_swap", swap)
    assert store.create(1, b"1") == b"1"


def test_a_watch_that_begins_at_a_silent_member_leaves_it_with_the_calls(three: LocalEtcd, open_at: Open) -> None:
    reader = open_at(three, lease_s=60)
    writer = open_at(EtcdAccess(parse_endpoints(three.endpoint.split(",")[2])), lease_s=60)
    three.signal(1, signal.SIGSTOP)
    leave_member(reader)  # so that the next one is asked
    changes = watching(reader)
    while not leave_member(reader):
        time.sleep(0.005)
    write(writer, 1)
    assert changes.get(timeout=15).record == b"1"
    three.signal(1, signal.SIGCONT)


def test_a_watch_that_has_ended_before_it_begins_is_a_member_to_leave(etcd: LocalEtcd, open_at: Open) -> None:
    client = open_at(etcd)._client

    async def write() -> None:
        connection = await client._connect()
        call = connection.begin(connection.stub("Watch").Watch)
        call.cancel()
        await call.code()
        await _write(call, client.rpc.WatchRequest())

    with pytest.raises(client._errors):
        asyncio.run_coroutine_threadsafe(write(), _event_loop()).result(5)


def test_where_nobody_answers_in_time_each_gets_more_time(etcd: LocalEtcd, open_at: Open) -> None:
    import grpc
    from grpc.aio import AioRpcError, Metadata

    store = open_at(etcd)
    client = store._client
    late = AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, Metadata(), Metadata())

    async def fail() -> float:
        await client._failed(await client._connect(), late)
        return client._timeout_s()

    timeouts = [asyncio.run_coroutine_threadsafe(fail(), _event_loop()).result(5) for _ in range(3)]
    assert timeouts == [4.0, 8.0, 8.0]
    assert store.latest() is None
    assert client._timeout_s() == 2.0, "somebody has answered"


def leave_member(store: EtcdStore) -> bool:
    """As a call does that was not answered. Did anybody use it?"""
    connection = store._client._connection
    if connection is None:
        return False
    used = bool(connection._calls)
    asyncio.run_coroutine_threadsafe(store._client._failed(connection, OSError("no answer")), _event_loop()).result(5)
    return used


def test_a_record_that_was_removed_ends_the_job_in_one_line(etcd: LocalEtcd, open_at: Open) -> None:
    store = open_at(etcd)
    write(store, 1)
    etcd.ctl("del", "softrun/", "--prefix")
    with pytest.raises(StoreLostError, match="record is gone from etcd"):
        store.create(2, b"2")


# --- keys of others


FOREIGN = (
    *(
        "members/foo",
        "members/",
        "members//1",
        "members/foo/bar",
        "members/foo/-1",
        "members/foo/1/2",
        "members/foo/\u0661",
    ),
    *(f"members/foo/{'9' * 400}", "members/\udcff\udcfe/1", "members/\x1b[2J/1", "record/xyz", "recorder", "other", ""),
)


def test_keys_of_strangers_are_passed_over(etcd: LocalEtcd, open_at: Open, warnings: pytest.LogCaptureFixture) -> None:
    store, leaver = open_at(etcd), open_at(etcd, "leaver")
    changes = watching(store)
    write(store, 1)
    assert changes.get(timeout=5).record == b"1"
    for name in FOREIGN:
        etcd.ctl("put", store._prefix + name, "\udcff{]\n")
        etcd.ctl("del", store._prefix + name)
    leaver.leave(over=False)
    assert changes.get(timeout=5) == Change(None, (("leaver", 1),))
    write(store, 2)
    assert changes.get(timeout=5).record == b"2"
    assert [record.getMessage() for record in warnings.records] == [
        "etcd has keys among this job's that are no agent's, such as members/foo: they are passed over"
    ], "once a minute at most"


def test_the_key_of_a_member_is_put_again(etcd: LocalEtcd, open_at: Open, warnings: pytest.LogCaptureFixture) -> None:
    robbed, other = open_at(etcd, "robbed", lease_s=60), open_at(etcd, "other", lease_s=60)
    own, seen = watching(robbed), watching(other)
    assert [robbed.renew().lease_number for _ in range(2)] == [1, 1]
    lease = robbed._lease
    etcd.ctl("del", f"{robbed._prefix}members/robbed/1")
    for changes in (own, seen):
        assert changes.get(timeout=5).expired == (("robbed", 1),), "to the others it is gone"
    assert [robbed.renew().lease_number for _ in range(2)] == [2, 2]
    assert other.missing([("robbed", 1), ("robbed", 2)]) == {("robbed", 1)}
    assert str(lease) not in etcd.ctl("lease", "list", "-w", "fields")
    assert "takes a new lease" in warnings.text
    etcd.ctl("del", f"{robbed._prefix}members/", "--prefix")
    assert other.missing([("other", 1)]) == {("other", 1)}, "as after a gap in what is watched"
    assert other.renew().lease_number == 1
    assert other.renew().lease_number == 2


def test_a_record_that_vanishes_disturbs_nobody_who_watches(etcd: LocalEtcd, open_at: Open) -> None:
    seen: SimpleQueue[Observation] = SimpleQueue()
    stores: list[EtcdStore] = []

    def open_store() -> EtcdStore:
        stores.append(open_at(etcd, "a"))
        return stores[0]

    threads = StoreThreads(open_store, seen.put)
    threads.start()
    while not isinstance(seen.get(timeout=10), RecordSeen):
        pass
    threads.propose(opened_round(member("a")))
    while seen.get(timeout=10) != RecordSeen(opened_round(member("a"))):
        pass
    etcd.ctl("del", f"{stores[0]._prefix}record")
    etcd.ctl("put", f"{stores[0]._prefix}members/x", "")
    etcd.ctl("del", f"{stores[0]._prefix}members/x")
    threads.renew()
    while not isinstance(found := seen.get(timeout=10), LeaseRenewed):
        assert not isinstance(found, StoreLost)
    threads.close()
