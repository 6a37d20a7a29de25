"""A client of etcd that outlives any one member: the only file that knows the package etcd3.

Of etcd3 it takes the messages and the calls (`etcd3.etcdrpc`). The connection is ours, since etcd3's own client stays
with one member, and its watcher calls again without a pause while etcd is away.

One member is asked at a time. A call that it refuses, or does not answer within CALL_TIMEOUT_S, goes to the next one,
and so do the watches, which would notice nothing themselves. A call is repeated until it is answered, so whatever it
does must be harmless when done twice.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from softrun.agent.errors import StoreLostError, UsageError

DEFAULT_PORT = 2379
CALL_TIMEOUT_S = 2.0
RETRY_S = 0.2  # between two rounds through all members

_OPTIONS = (
    # Or a member that was away is left alone for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", int(CALL_TIMEOUT_S * 1000)),  # which is how long an attempt may take
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
)
_T = TypeVar("_T")

logger = logging.getLogger("softrun.store")


@dataclass(frozen=True)
class EtcdAccess:
    """Where etcd is and how to get in. The password is never shown."""

    endpoints: tuple[str, ...]  # HOST:PORT
    tls: bool = False
    ca_cert: str | None = None  # files in PEM format; without one, the system's authorities
    ssl_cert: str | None = None
    ssl_cert_key: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)


class EtcdClient:
    """Every method blocks until it is answered, and raises StoreLostError where no waiting helps, or after `close`.

    For any thread.
    """

    def __init__(self, access: EtcdAccess, connect_timeout_s: float) -> None:
        self.rpc, self._grpc = _load_etcd3()
        self._access = access
        self._credentials = _channel_credentials(self._grpc, access)
        self._lock = threading.Lock()
        self._order = itertools.cycle(access.endpoints)
        self._connection: _Connection | None = None
        self._failures = 0  # in a row, over all members
        self._away_since: float | None = None
        self._closing = threading.Event()
        self._give_up_at: float | None = time.monotonic() + connect_timeout_s
        self.call("KV", "Range", self.rpc.RangeRequest(key=b"softrun/", count_only=True))
        self._give_up_at = None

    def call(self, service: str, method: str, request: Any) -> Any:
        """The answer to one request."""
        return self._until_answered(
            lambda connection: getattr(connection.stub(service), method)(
                request, timeout=CALL_TIMEOUT_S, metadata=connection.metadata
            )
        )

    def keep_alive(self, lease: int) -> tuple[float, int]:
        """When the request was sent, by the monotonic clock, and how many seconds the lease stands; 0: it is gone."""
        request = self.rpc.LeaseKeepAliveRequest(ID=lease)

        def ask(connection: _Connection) -> tuple[float, int]:
            sent_at = time.monotonic()
            answers = connection.stub("Lease").LeaseKeepAlive(
                iter([request]), timeout=CALL_TIMEOUT_S, metadata=connection.metadata
            )
            for answer in answers:
                return sent_at, answer.TTL
            raise ConnectionAbortedError("the keep-alive was ended")

        return self._until_answered(ask)

    def watch(self, create_requests: list[Any]) -> Iterator[Any]:
        """The responses to these watches, on one member; ends when that member is left."""
        requests = [self.rpc.WatchRequest(create_request=request) for request in create_requests]
        hold = threading.Event()  # the stream ends when its requests do

        def sent() -> Iterator[Any]:
            yield from requests
            hold.wait()

        connection: _Connection | None = None
        try:
            connection = self._connect()
            metadata = (*connection.metadata, ("hasleader", "true"))
            for response in connection.stub("Watch").Watch(sent(), metadata=metadata):
                if response.canceled and not response.compact_revision:
                    raise ConnectionAbortedError(response.cancel_reason or "the watch was ended")
                yield response
        except (self._grpc.RpcError, ValueError, OSError) as error:
            self._failed(connection, error)
        finally:
            hold.set()

    def close(self) -> None:
        """Frees whoever waits for an answer."""
        self._closing.set()
        with self._lock:
            if self._connection is not None:
                self._connection.channel.close()

    def _until_answered(self, ask: Callable[[_Connection], _T]) -> _T:
        while True:
            connection: _Connection | None = None
            try:
                connection = self._connect()
                answer = ask(connection)
            except (self._grpc.RpcError, ValueError, OSError) as error:
                self._failed(connection, error)
                continue
            self._succeeded()
            return answer

    def _connect(self) -> _Connection:
        with self._lock:
            if self._closing.is_set():
                raise StoreLostError("the connection to etcd was closed")
            if self._connection is None:
                self._connection = self._dial(next(self._order))
            return self._connection

    def _dial(self, endpoint: str) -> _Connection:
        if self._credentials is None:
            channel = self._grpc.insecure_channel(endpoint, options=_OPTIONS)
        else:
            channel = self._grpc.secure_channel(endpoint, self._credentials, options=_OPTIONS)
        connection = _Connection(endpoint, channel, self.rpc)
        if self._access.user is not None:
            self._connection = connection  # to be left like any other if it does not answer
            request = self.rpc.AuthenticateRequest(name=self._access.user, password=self._access.password)
            token = connection.stub("Auth").Authenticate(request, timeout=CALL_TIMEOUT_S).token
            connection.metadata = (("token", token),)
        return connection

    def _failed(self, connection: _Connection | None, error: Exception) -> None:
        """Leave this member; raises where no member will answer otherwise. Returns when it is time to try again."""
        if self._closing.is_set():
            raise StoreLostError("the connection to etcd was closed") from error
        if isinstance(error, ValueError) and "closed" not in str(error).lower():
            raise error  # grpc has no other error for a channel that another thread has closed
        self._refuse_for_good(error)
        with self._lock:
            connection = connection or self._connection
            if connection is not None and connection is self._connection:
                self._connection = None
                self._failures += 1
            failures = self._failures
            if connection is not None:
                connection.channel.close()
        if failures >= len(self._access.endpoints):
            reason = _reason(error)
            self._note_absence(reason)
            if self._give_up_at is not None and (time.monotonic() >= self._give_up_at or _is_of_tls(reason)):
                raise StoreLostError(
                    f"no etcd answers at {','.join(self._access.endpoints)} ({reason}): start it, or correct "
                    "--rdzv_endpoint and the certificates in --rdzv_conf"
                ) from error
            self._closing.wait(RETRY_S)

    def _refuse_for_good(self, error: Exception) -> None:
        code, details = _code(error), _reason(error)
        stale = "auth token" in details or "auth store is old" in details  # authenticated anew with the next connection
        if code in ("INVALID_ARGUMENT", "PERMISSION_DENIED", "UNAUTHENTICATED", "FAILED_PRECONDITION") and not stale:
            if not any(word in details for word in ("user", "auth", "permission", "password")):
                raise EtcdRefusedError(f"etcd refuses: {details}") from error
            who = f"user {self._access.user!r}" if self._access.user is not None else "no user"
            raise EtcdRefusedError(
                f"etcd refuses {who}: {details}; give user in --rdzv_conf, and the password by password_file there "
                "or in SOFTRUN_ETCD_PASSWORD"
            ) from error
        if code == "NOT_FOUND":
            raise LeaseGoneError("the lease is gone") from error

    def _note_absence(self, reason: str) -> None:
        with self._lock:
            if self._away_since is not None or self._give_up_at is not None:
                return
            self._away_since = time.monotonic()
        logger.warning("etcd cannot be reached (%s): the workers go on, changes of the world wait", reason)

    def _succeeded(self) -> None:
        with self._lock:
            self._failures = 0
            since, self._away_since = self._away_since, None
        if since is not None:
            logger.warning("etcd is back after %.1f s", time.monotonic() - since)


class EtcdRefusedError(StoreLostError):
    """etcd answers, and will not do it."""


class LeaseGoneError(StoreLostError):
    """The lease has expired or was revoked."""


class _Connection:
    """To one member."""

    def __init__(self, endpoint: str, channel: Any, rpc: ModuleType) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.metadata: tuple[tuple[str, str], ...] = ()
        self._rpc = rpc
        self._stubs: dict[str, Any] = {}

    def stub(self, service: str) -> Any:
        if service not in self._stubs:
            self._stubs[service] = getattr(self._rpc, f"{service}Stub")(self.channel)
        return self._stubs[service]


def parse_endpoints(text: str) -> tuple[str, ...]:
    """HOST[:PORT][,HOST[:PORT]…], each with http:// or https:// before it if one likes. Raises UsageError."""
    endpoints = []
    for part in text.split(","):
        scheme, _, rest = part.strip().rpartition("://")
        host, separator, port = rest.rpartition(":")
        if rest.endswith("]") or not separator:
            host, port = rest, str(DEFAULT_PORT)
        valid = host and port.isascii() and port.isdigit() and 0 < int(port) <= 65535 and not set("/ ") & set(rest)
        if scheme not in ("", "http", "https") or not valid:
            raise UsageError(f"--rdzv_endpoint {text!r} is not HOST:PORT,HOST:PORT,…: {part!r} is none")
        endpoints.append(f"{host}:{port}")
    return tuple(endpoints)


def _channel_credentials(grpc: ModuleType, access: EtcdAccess) -> Any:
    if not access.tls:
        return None
    try:
        files = [
            Path(name).read_bytes() if name else None for name in (access.ca_cert, access.ssl_cert_key, access.ssl_cert)
        ]
    except OSError as error:
        raise UsageError(f"--rdzv_conf names a certificate that cannot be read: {error}") from error
    return grpc.ssl_channel_credentials(*files)


def _code(error: Exception) -> str:
    code = getattr(error, "code", None)
    return str(code().name) if callable(code) else ""


def _reason(error: Exception) -> str:
    details = getattr(error, "details", None)
    return str(details() if callable(details) else error).splitlines()[0][:200]


def _is_of_tls(reason: str) -> bool:
    return any(word in reason.lower() for word in ("ssl", "tls", "certificate", "handshake"))


# --- the package etcd3


def _load_etcd3() -> tuple[ModuleType, ModuleType]:
    """etcd3's messages and calls, and grpc. Raises UsageError where they are not installed."""
    if importlib.util.find_spec("etcd3") is None:
        raise UsageError("--rdzv_backend etcd3 needs the package etcd3: pip install 'softrun[etcd]'")
    with _quiet_grpc():
        grpc = importlib.import_module("grpc")
        if "etcd3" not in sys.modules:
            _provide_messages()
        return importlib.import_module("etcd3.etcdrpc"), grpc


def _provide_messages() -> None:
    """Put etcd3's generated modules into sys.modules, built by the protobuf that is installed.

    etcd3 0.12 comes with modules that protobuf 4 and later refuses to import. What they describe is a string in them.
    It goes into a pool of its own: the names of the files, such as rpc.proto, may be taken in the common one.
    """
    protobuf = importlib.import_module("google.protobuf")
    if int(protobuf.__version__.partition(".")[0]) < 4:
        return  # they import as they are
    descriptor_pool = importlib.import_module("google.protobuf.descriptor_pool")
    message_factory = importlib.import_module("google.protobuf.message_factory")
    package = importlib.util.find_spec("etcd3")
    if package is None or package.submodule_search_locations is None:
        raise UsageError("the package etcd3 is damaged: install it again")
    directory = Path(next(iter(package.submodule_search_locations))) / "etcdrpc"
    pool = descriptor_pool.DescriptorPool()
    make_class = getattr(message_factory, "GetMessageClass", None) or message_factory.MessageFactory(pool).GetPrototype
    for name in ("kv", "auth", "rpc"):
        pool.AddSerializedFile(_serialized(directory / f"{name}_pb2.py"))
        described = pool.FindFileByName(f"{name}.proto")
        module = ModuleType(f"etcd3.etcdrpc.{name}_pb2")
        module.DESCRIPTOR = described  # type: ignore[attr-defined]
        for message_name, message in described.message_types_by_name.items():
            setattr(module, message_name, make_class(message))
        for enum in described.enum_types_by_name.values():
            for value in enum.values:
                setattr(module, value.name, value.number)
        sys.modules[module.__name__] = module


def _serialized(path: Path) -> bytes:
    """The description of a generated module: `serialized_pb=_b('…')` in its source, which is not run."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb" and isinstance(node.value, ast.Call):
            return str(ast.literal_eval(node.value.args[0])).encode("latin1")
    raise UsageError(f"{path} describes no messages: this release of etcd3 is not known, install etcd3==0.12.0")


@contextmanager
def _quiet_grpc() -> Iterator[None]:
    """grpc writes every failed connection to standard error, unless it is told otherwise when it is loaded.

    The setting is for this agent alone: the workers get the environment as it was.
    """
    name = "GRPC_VERBOSITY"
    if name in os.environ:
        yield
        return
    os.environ[name] = "NONE"
    try:
        yield
    finally:
        del os.environ[name]
