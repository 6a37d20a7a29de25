"""The store in etcd against a real one, and what can befall it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest
from values import member
from values import opened as opened_round

from local_etcd import LocalEtcd
from softrun.agent.errors import StoreLostError, UsageError
from softrun.agent.protocol.codec import encode_round
from softrun.agent.protocol.observations import LeaseRenewed, LeasesExpired, Observation, RecordSeen, StoreLost
from softrun.agent.store import secrets
from softrun.agent.store.backends import choose_backend, token_path
from softrun.agent.store.base import Change, StoreThreads
from softrun.agent.store.etcd import EtcdStore
from softrun.agent.store.etcd_client import EtcdAccess, _event_loop, _write, parse_endpoints
from softrun.agent.store.settings import EtcdSettings, RendezvousSettings
from softrun.agent.torch_elastic.elastic import RendezvousParameters
from softrun.agent.torch_elastic.handler import get_rendezvous_handler
from softrun.agent.usage import check_endpoint
from softrun.policies import load_policy

pytestmark = pytest.mark.etcd

Open = Callable[..., EtcdStore]


@pytest.fixture
def opened() -> Iterator[list[EtcdStore]]:
    stores: list[EtcdStore] = []
    yield stores
    for store in stores:
        store.close()


@pytest.fixture
def open_at(opened: list[EtcdStore]) -> Open:
    """Each call opens the same job's store for another agent."""
    job = uuid.uuid4().hex

    def open_at(access: EtcdAccess | LocalEtcd, node: str = "", lease_s: float = 5, timeout_s: float = 10) -> EtcdStore:
        if isinstance(access, LocalEtcd):
            access = EtcdAccess(parse_endpoints(access.endpoint))
        store = EtcdStore(job, node or f"node{len(opened)}", access, lease_s, timeout_s)
        opened.append(store)
        return store

    return open_at


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


def watching(store: EtcdStore, version: int = 0) -> SimpleQueue[Change]:
    """All changes from now on."""
    changes: SimpleQueue[Change] = SimpleQueue()

    def watch(version: int) -> None:
        try:
            while True:
                change = store.wait_beyond(version)
                if change.record is not None:
                    version = int(change.record)
                changes.put(change)
        except StoreLostError:
            pass

    threading.Thread(target=watch, args=(version,), daemon=True).start()
    return changes


def write(store: EtcdStore, version: int) -> None:
    assert store.create(version, b"%d" % version) == b"%d" % version


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
    other.end(("owner", 1), by=1)
    assert changes.get(timeout=5).expired == (("owner", 1),)
    write(other, 1)
    assert owner.create(2, b"mine") == b"1", "it has no say until it knows"
    owner.missing([("owner", 1)])  # as its watch tells it
    assert owner.renew().lease_number == 2
    write(owner, 2)
    owner.end(("other", 1), by=1)  # asked for before it knew
    assert not other.missing([("other", 1)])


def test_of_two_that_end_each_others_leases_one_is_left(etcd: LocalEtcd, open_at: Open) -> None:
    first, second = open_at(etcd, "first", lease_s=60), open_at(etcd, "second", lease_s=60)
    first.end(("second", 1), by=1)
    second.end(("first", 1), by=1)
    assert first.missing([("first", 1), ("second", 1)]) == {("second", 1)}


def test_who_has_no_lease_writes_no_first_record(etcd: LocalEtcd, open_at: Open) -> None:
    late, other = open_at(etcd, "late", lease_s=60), open_at(etcd, "other", lease_s=60)
    other.end(("late", 1), by=1)
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


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What softrun warns of, even where a command line has been run before."""
    monkeypatch.setattr(logging.getLogger("softrun"), "propagate", True)
    return caplog


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


# --- getting in


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[LocalEtcd]:
    with LocalEtcd(tmp_path) as etcd:
        etcd.ctl("user", "add", "root:secret")
        etcd.ctl("role", "add", "root")
        etcd.ctl("user", "grant-role", "root", "root")
        etcd.ctl("user", "add", "trainer:pass word")
        etcd.ctl("role", "add", "softrun")
        etcd.ctl("role", "grant-permission", "softrun", "--prefix=true", "readwrite", "softrun/")
        etcd.ctl("user", "grant-role", "trainer", "softrun")
        etcd.ctl("auth", "enable")
        yield etcd


def test_user_and_password(guarded: LocalEtcd, open_at: Open) -> None:
    access = EtcdAccess((guarded.endpoint,), user="trainer", password="pass word")
    a, b = open_at(access), open_at(access)
    changes = watching(b)
    write(a, 1)
    assert changes.get(timeout=5).record == b"1"
    assert [a.renew().lease_number for _ in range(2)] == [1, 1]
    guarded.kill(0)
    guarded.start_again(0)  # a token of before means nothing to it
    write(a, 2)
    assert changes.get(timeout=15).record == b"2"


@pytest.mark.parametrize(("user", "password"), [("trainer", "wrong"), ("nobody", "x"), (None, None)])
def test_authentication_is_refused_at_once(
    guarded: LocalEtcd, open_at: Open, user: str | None, password: str | None
) -> None:
    with pytest.raises(StoreLostError, match="etcd refuses") as refusal:
        open_at(EtcdAccess((guarded.endpoint,), user=user, password=password), timeout_s=60)
    assert "wrong" not in str(refusal.value)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two authorities, `ca` and `other`, and what each has signed for 127.0.0.1."""
    directory = tmp_path_factory.mktemp("certificates")
    for ca in ("ca", "other"):
        openssl = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={ca}"]
        run(directory, *openssl, "-keyout", f"{ca}.key", "-out", f"{ca}.pem")
        for name in ("server", "client"):
            base = f"{ca}-{name}"
            (directory / "san").write_text("subjectAltName=IP:127.0.0.1")
            request = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"]
            run(directory, *request, "-keyout", f"{base}.key", "-out", f"{base}.csr")
            sign = ["openssl", "x509", "-req", "-days", "2", "-CAcreateserial", "-extfile", "san"]
            authority = ["-CA", f"{ca}.pem", "-CAkey", f"{ca}.key"]
            run(directory, *sign, *authority, "-in", f"{base}.csr", "-out", f"{base}.pem")
    return directory


def run(directory: Path, *command: str) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


@pytest.fixture
def secure(tmp_path: Path, authority: Path) -> Iterator[LocalEtcd]:
    """It demands a certificate of its clients."""
    flags = [
        f"--cert-file={authority}/ca-server.pem",
        f"--key-file={authority}/ca-server.key",
        f"--trusted-ca-file={authority}/ca.pem",
        "--client-cert-auth",
    ]
    client = [f"--cacert={authority}/ca.pem", f"--cert={authority}/ca-client.pem", f"--key={authority}/ca-client.key"]
    with LocalEtcd(tmp_path, flags=flags, scheme="https", client=client) as etcd:
        yield etcd


def secured(etcd: LocalEtcd, authority: Path, ca: str = "ca", client: str | None = "ca") -> EtcdAccess:
    return EtcdAccess(
        (etcd.endpoint,),
        tls=True,
        ca_cert=f"{authority}/{ca}.pem",
        ssl_cert=f"{authority}/{client}-client.pem" if client else None,
        ssl_cert_key=f"{authority}/{client}-client.key" if client else None,
    )


def test_mutual_tls(secure: LocalEtcd, authority: Path, open_at: Open) -> None:
    store = open_at(secured(secure, authority))
    write(store, 1)
    assert store.latest() == b"1"


@pytest.mark.parametrize(("ca", "client"), [("other", "ca"), ("ca", "other"), ("ca", None)])
def test_a_wrong_certificate_is_refused(
    secure: LocalEtcd, authority: Path, open_at: Open, ca: str, client: str | None
) -> None:
    with pytest.raises(StoreLostError, match="no etcd answers"):
        open_at(secured(secure, authority, ca, client), timeout_s=3)


# --- the flags


def choose(endpoint: str = "h:1", **conf: object) -> None:
    choose_backend("etcd3", endpoint, dict(conf), load_policy("soft"), "job", "node", 1, "127.0.0.1")


@pytest.fixture(autouse=True)
def _no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_taken", {})


def test_a_password_has_a_place_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="SOFTRUN_ETCD_PASSWORD"):
        choose(user="me")
    with pytest.raises(UsageError, match="has no key 'password'"):
        choose(user="me", password="p")
    with pytest.raises(UsageError, match="cannot be read"):
        choose(user="me", password_file=str(tmp_path / "none"))
    monkeypatch.setenv("SOFTRUN_ETCD_PASSWORD", "")
    with pytest.raises(UsageError, match="there is no password"):
        choose(user="me")
    monkeypatch.setenv("SOFTRUN_ETCD_PASSWORD", "hush")
    choose(user="me")
    assert "SOFTRUN_ETCD_PASSWORD" not in os.environ, "the workers inherit the environment"
    choose(user="me")  # it is remembered
    assert "hush" not in repr(EtcdAccess(("h:1",), user="me", password="hush"))


def test_a_password_that_goes_over_plain_http_is_warned_of(
    tmp_path: Path, authority: Path, warnings: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    secret.chmod(0o600)
    choose(password_file=str(secret))
    choose(user="me", password_file=str(secret), protocol="https")
    choose(endpoint="https://h:1", user="me", password_file=str(secret))
    choose(user="me", password_file=str(secret), ca_cert=f"{authority}/ca.pem")
    assert not warnings.records
    choose(user="me\x1b", password_file=str(secret))
    [warning] = warnings.records
    assert warning.getMessage() == (
        "the password of --rdzv_conf user=me\\x1b goes to etcd unencrypted: give protocol=https there"
    )


def test_a_password_that_everybody_can_read_is_warned_of(tmp_path: Path, warnings: pytest.LogCaptureFixture) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush")
    secret.chmod(0o644)
    choose(user="me", password_file=str(secret), protocol="https")
    [warning] = warnings.records
    assert warning.getMessage() == (
        f"--rdzv_conf password_file={secret} can be read by every user of this machine: chmod 600 it"
    )


@pytest.fixture
def odd(tmp_path: Path, authority: Path) -> dict[str, str]:
    """Files that are not what they should be, and some that are, by what they are."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    (tmp_path / "spaces").write_text(" \n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00\x80")
    (tmp_path / "huge").write_bytes(bytes(2 << 20))
    (tmp_path / "text").write_text("-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n")
    run(
        tmp_path,
        *("openssl", "rsa", "-aes128", "-passout", "pass:x"),
        "-in",
        f"{authority}/ca-client.key",
        "-out",
        "locked",
    )
    names = ("fifo", "empty", "spaces", "bytes", "huge", "text", "locked", "none")
    kept = ("ca.pem", "ca-client.pem", "ca-client.key", "other-client.key")
    return {
        "directory": str(tmp_path),
        **{name: str(tmp_path / name) for name in names},
        **{name: str(authority / name) for name in kept},
    }


PAIR = {"ssl_cert": "ca-client.pem", "ssl_cert_key": "ca-client.key"}
WRONG_FILES: tuple[tuple[dict[str, str], str], ...] = (
    ({"ca_cert": "none"}, "ca_cert={none} cannot be read: No such file or directory"),
    ({"ca_cert": "directory"}, "ca_cert={directory} is not a regular file: give the path of one"),
    ({"ca_cert": "fifo"}, "ca_cert={fifo} is not a regular file: give the path of one"),
    ({"ca_cert": "empty"}, "ca_cert={empty} holds no certificate (*): give a file in PEM format"),
    ({"ca_cert": "bytes"}, "ca_cert={bytes} holds no certificate (*): give a file in PEM format"),
    ({"ca_cert": "text"}, "ca_cert={text} holds no certificate (*): give a file in PEM format"),
    ({"ca_cert": "ca-client.key"}, "ca_cert={ca-client.key} holds no certificate (*): give a file in PEM format"),
    ({"ca_cert": "huge"}, "ca_cert={huge} has 2097152 bytes, which no such file has: correct the path"),
    ({"ssl_cert": "ca-client.pem"}, "ssl_cert={ca-client.pem} without its key: give ssl_cert_key as well"),
    ({"ssl_cert_key": "ca-client.key"}, "ssl_cert_key={ca-client.key} without its certificate: give ssl_cert as well"),
    (PAIR | {"ssl_cert": "none"}, "ssl_cert={none} cannot be read: No such file or directory"),
    (PAIR | {"ssl_cert": "fifo"}, "ssl_cert={fifo} is not a regular file: give the path of one"),
    (PAIR | {"ssl_cert": "text"}, "ssl_cert={text} holds no certificate (*): give a file in PEM format"),
    (PAIR | {"ssl_cert_key": "none"}, "ssl_cert_key={none} cannot be read: No such file or directory"),
    (PAIR | {"ssl_cert_key": "fifo"}, "ssl_cert_key={fifo} is not a regular file: give the path of one"),
    (PAIR | {"ssl_cert_key": "empty"}, "ssl_cert_key={empty} holds no key (*): give a file in PEM format"),
    (PAIR | {"ssl_cert_key": "ca.pem"}, "ssl_cert_key={ca.pem} holds no key (*): give a file in PEM format"),
    (PAIR | {"ssl_cert_key": "locked"}, "ssl_cert_key={locked} is encrypted: give a key without a passphrase"),
    (
        PAIR | {"ssl_cert_key": "other-client.key"},
        "ssl_cert_key={other-client.key} is not the key of ssl_cert={ca-client.pem}: give the two that belong together",
    ),
    ({"password_file": "fifo"}, "password_file={fifo} is not a regular file: give the path of one"),
    ({"password_file": "none"}, "password_file={none} cannot be read: No such file or directory"),
    ({"password_file": "empty"}, "password_file={empty} is empty: write the secret into it"),
    ({"password_file": "spaces"}, "password_file={spaces} is empty: write the secret into it"),
    ({"password_file": "bytes"}, "password_file={bytes} is not text in UTF-8: write the secret alone into it"),
    ({"password_file": "huge"}, "password_file={huge} has 2097152 bytes, which no such file has: correct the path"),
)


@pytest.mark.parametrize(
    "conf", WRONG_FILES, ids=lambda conf: ",".join(f"{key}={name}" for key, name in conf[0].items())
)
def test_a_wrong_file_is_named_at_once(conf: tuple[dict[str, str], str], odd: dict[str, str]) -> None:
    files, says = conf
    user = {"user": "me"} if "password_file" in files else {}
    began = time.monotonic()
    with pytest.raises(UsageError) as refusal:
        choose(**user, **{key: odd[name] for key, name in files.items()})
    assert time.monotonic() - began < 2
    for name, path in odd.items():
        says = says.replace(f"{{{name}}}", path)
    start, _, end = says.partition("*")
    said = str(refusal.value)
    assert said.isprintable()
    assert said.startswith("--rdzv_conf ")
    assert start in said
    assert said.endswith(end)


def test_right_files_are_taken(odd: dict[str, str]) -> None:
    choose(ca_cert=odd["ca.pem"])
    choose(**{key: odd[name] for key, name in PAIR.items()}, ca_cert=odd["ca.pem"])


@pytest.mark.parametrize("endpoint", ["me:hush@h", "me:hush@h:1", "https://me:hush@h:1", "a:1,me:hush@h:1", "hush@"])
@pytest.mark.parametrize("refuse", [choose, check_endpoint])
def test_a_password_in_the_endpoint_is_refused_and_not_shown(refuse: Callable[[str], None], endpoint: str) -> None:
    with pytest.raises(UsageError, match="has an '@': give HOST:PORT alone") as refusal:
        refuse(endpoint)
    assert "hush" not in str(refusal.value)


@pytest.mark.parametrize("conf", [{"token_file": "/secret"}, {}])
def test_every_backend_knows_the_settings_of_the_job(conf: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (RendezvousSettings, EtcdSettings):
        settings = kind.parse(conf, load_policy("soft"))
        assert settings.token_file == conf.get("token_file")
        monkeypatch.setenv("SOFTRUN_TOKEN_FILE", "/other")
        assert token_path(settings) == conf.get("token_file", "/other")
        assert token_path(settings) == conf.get("token_file", "/other"), "it is remembered"
        assert "SOFTRUN_TOKEN_FILE" not in os.environ


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a:1,b:2", ("a:1", "b:2")),
        ("a, b", ("a:2379", "b:2379")),
        ("https://a:1", ("a:1",)),
        ("[::1]:77,[::1]", ("[::1]:77", "[::1]:2379")),
    ],
)
def test_endpoints(text: str, parsed: tuple[str, ...]) -> None:
    assert parse_endpoints(text) == parsed


@pytest.mark.parametrize(
    "text",
    [
        *("", "a:b", "a:0", "ftp://a:1", "a:1,,b:1", "a:1/path", "a b:1", "a:65536", f"a:{'9' * 5000}", "a..b:1"),
        *("a" * 64 + ".b:1", "a." * 130 + ":1", "\udcff:1", "a\n:1", "[]:1"),
    ],
)
def test_wrong_endpoints(text: str) -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        parse_endpoints(text)


def test_backends_that_are_not_there() -> None:
    for name in ("etcd", "etcd-v2"):
        with pytest.raises(UsageError, match="use etcd3"):
            get_rendezvous_handler(RendezvousParameters(name, "h:1", "job", 1, 1))
    with pytest.raises(UsageError, match=r"not registered.*use c10d, etcd3, static"):
        get_rendezvous_handler(RendezvousParameters("pigeon", "h:1", "job", 1, 1))
    with pytest.raises(UsageError, match="has no key 'lease_ttl'"):
        choose_backend("c10d", "h:1", {"lease_ttl": 5}, load_policy("soft"), "job", "node", 1, "127.0.0.1")
