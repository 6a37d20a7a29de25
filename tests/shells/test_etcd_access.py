"""How an agent gets into etcd: users and passwords, certificates, and what the command line says of them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from etcd_stores import Open, watching, write

from local_etcd import LocalEtcd
from softrun.agent.errors import StoreLostError, UsageError
from softrun.agent.store import secrets
from softrun.agent.store.backends import choose_backend
from softrun.agent.store.etcd_client import EtcdAccess, parse_endpoints
from softrun.agent.store.secrets import token_path
from softrun.agent.store.settings import EtcdSettings, RendezvousSettings
from softrun.agent.torch_elastic.elastic import RendezvousParameters
from softrun.agent.torch_elastic.handler import get_rendezvous_handler
from softrun.agent.usage import check_endpoint
from softrun.policies import load_policy

pytestmark = pytest.mark.etcd


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
        assert token_path(settings.token_file) == conf.get("token_file", "/other")
        assert token_path(settings.token_file) == conf.get("token_file", "/other"), "it is remembered"
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
