"""A client of etcd that outlives any one member: the only file that knows the package etcd3.

Of etcd3 it takes the messages and the calls (`etcd3.etcdrpc`). The connection is ours, since etcd3's own client stays
with one member, and its watcher calls again without a pause while etcd is away. It lives in an event loop in a thread
of its own: a thread that waits in grpc's blocking interface wakes up fifteen times a second for nothing.

One member is asked at a time. A call that it refuses, or does not answer in time, goes to the next member, and the
watches move with it, since they would notice nothing themselves. A call is repeated until it is answered, so it must be
harmless when done twice. If no member answers in time, each gets more time in the next round: a slow etcd would stay
slow if it were asked again and again over new connections.
"""

from __future__ import annotations

import ast
import asyncio
import concurrent.futures
import functools
import importlib
import importlib.util
import itertools
import logging
import os
import random
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from softrun.agent.errors import StoreLostError, UsageError
from softrun.agent.protocol.checks import is_host
from softrun.agent.protocol.printable import printable
from softrun.agent.store.given_files import content_of
from softrun.agent.store.tls_files import check_tls_files
from softrun.runtime.clock import boottime

DEFAULT_PORT = 2379
CALL_TIMEOUT_S = 2.0
SLOWEST_TIMEOUT_S = 8.0  # after rounds without an answer; a lease that is asked for by then still stands
RETRY_S = 0.2  # between two rounds through all members, give or take half

_OPTIONS = (
    # Otherwise a member that was away is left alone for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", int(CALL_TIMEOUT_S * 1000)),  # which is how long an attempt may take
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.bdp_probe", 0),  # otherwise a ping follows every answer, to measure a bandwidth that nobody needs
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
    """Every method blocks until it is answered. It raises StoreLostError if waiting is of no use, or after `close`; the
    first call also does if nobody answers within `connect_timeout_s` seconds.

    Any thread may call them.
    """

    def __init__(self, access: EtcdAccess, connect_timeout_s: float) -> None:
        self.rpc, self._grpc = _load_etcd3()
        self._access = access
        self._credentials = _channel_credentials(self._grpc, access)
        # The rest belongs to the event loop.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._order = itertools.cycle(access.endpoints)
        self._connection: _Connection | None = None
        self._dialling = asyncio.Lock()
        self._failures = 0  # in a row, whichever member
        self._timeouts = 0  # how many of those
        self._away_since: float | None = None
        self._closing = False
        self._give_up_at: float | None = boottime() + connect_timeout_s  # unless something was answered by then

    def call(self, service: str, method: str, request: Any) -> Any:
        """Return the answer to one request."""
        return self._ask(
            lambda connection, timeout_s: connection.begin(
                getattr(connection.stub(service), method), request, timeout=timeout_s
            )
        )

    def keep_alive(self, lease: int) -> tuple[float, int]:
        """Return when the request was sent, by the agent's clock, and how many seconds it holds; 0: it is gone."""
        request = self.rpc.LeaseKeepAliveRequest(ID=lease)

        async def ask(connection: _Connection, timeout_s: float) -> tuple[float, int]:
            sent_at = boottime()
            answer = await connection.begin(connection.keep_alive, request, timeout=timeout_s)
            return sent_at, answer.TTL

        return self._ask(ask)

    def watch(self, create_requests: list[Any]) -> Iterator[Any]:
        """Yield the responses to these watches, on one member; ends when the client leaves that member."""
        stream = self._run(self._begin_watch(create_requests))
        while stream is not None and (response := self._run(self._next_of_watch(stream))) is not None:
            yield response

    def close(self) -> None:
        """Free every thread that waits for an answer."""
        asyncio.run_coroutine_threadsafe(self._close(), _event_loop()).result()

    # --- in the event loop

    def _run(self, asked: Coroutine[Any, Any, _T]) -> _T:
        """Have the event loop do it, and wait for the result."""
        try:
            return asyncio.run_coroutine_threadsafe(self._noted(asked), _event_loop()).result()
        except concurrent.futures.CancelledError as error:
            raise StoreLostError("the connection to etcd was closed") from error

    async def _noted(self, asked: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("called outside of a task")
        self._tasks.add(task)
        try:
            return await asked
        finally:
            self._tasks.discard(task)

    def _ask(self, ask: Callable[[_Connection, float], Awaitable[_T]]) -> _T:
        return self._run(self._until_answered(ask))

    async def _until_answered(self, ask: Callable[[_Connection, float], Awaitable[_T]]) -> _T:
        while True:
            connection: _Connection | None = None
            try:
                connection = await self._connect()
                answer = await ask(connection, self._timeout_s())
            except self._errors as error:
                await self._failed(connection, error)
                continue
            self._succeeded()
            return answer

    async def _begin_watch(self, create_requests: list[Any]) -> _Stream | None:
        connection: _Connection | None = None
        try:
            connection = await self._connect()
            call = connection.begin(connection.stub("Watch").Watch, metadata=(("hasleader", "true"),))
            for request in create_requests:
                await _write(call, self.rpc.WatchRequest(create_request=request))
        except self._errors as error:
            await self._failed(connection, error)
            return None
        return _Stream(connection, call)

    async def _next_of_watch(self, stream: _Stream) -> Any:
        """Return the next response; None once the client has left the member."""
        try:
            response = await stream.call.read()
            if response is self._grpc.aio.EOF:
                raise ConnectionAbortedError("the watch was ended")
            if response.canceled and not response.compact_revision:
                raise ConnectionAbortedError(response.cancel_reason or "the watch was ended")
        except self._errors as error:
            stream.call.cancel()
            await self._failed(stream.connection, error)
            return None
        return response

    @property
    def _errors(self) -> tuple[type[BaseException], ...]:
        """The errors of a member that cannot be used, and of calls that ended because another call found that out."""
        aio = self._grpc.aio
        return self._grpc.RpcError, aio.BaseError, asyncio.InvalidStateError, asyncio.CancelledError, OSError

    async def _connect(self) -> _Connection:
        async with self._dialling:
            if self._closing:
                raise StoreLostError("the connection to etcd was closed")
            return self._connection or await self._dial(next(self._order))

    async def _dial(self, endpoint: str) -> _Connection:
        if self._credentials is None:
            channel = self._grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        else:
            channel = self._grpc.aio.secure_channel(endpoint, self._credentials, options=_OPTIONS)
        self._connection = connection = _Connection(channel, self.rpc)
        if self._access.user is not None:
            # A member that does not answer this is left, like any other.
            request = self.rpc.AuthenticateRequest(name=self._access.user, password=self._access.password)
            authenticate = connection.stub("Auth").Authenticate
            token = (await connection.begin(authenticate, request, timeout=CALL_TIMEOUT_S)).token
            connection.metadata = (("token", token),)
        return connection

    async def _close(self) -> None:
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._connection is not None:
            await self._connection.leave()

    async def _failed(self, connection: _Connection | None, error: BaseException) -> None:
        """Leave this member; returns when it is time to try again. Raises if no member would answer differently."""
        if self._closing:
            raise StoreLostError("the connection to etcd was closed") from error
        self._refuse_for_good(error)
        connection = connection or self._connection
        if connection is not None and connection is self._connection:
            self._connection = None
            self._failures += 1
            self._timeouts += _code(error) == "DEADLINE_EXCEEDED"
        if connection is not None:
            await connection.leave()
        if self._failures >= len(self._access.endpoints):
            reason = _reason(error)
            self._note_absence(reason)
            if self._give_up_at is not None and (boottime() >= self._give_up_at or _is_of_tls(reason)):
                raise StoreLostError(
                    f"no etcd answers at {','.join(self._access.endpoints)} ({reason}): start it, or correct "
                    "--rdzv_endpoint and the certificates in --rdzv_conf"
                ) from error
            # Many clients that lost it at the same moment should not all come back at once.
            await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.5))

    def _timeout_s(self) -> float:
        rounds = self._timeouts // len(self._access.endpoints)
        return min(CALL_TIMEOUT_S * float(2**rounds), SLOWEST_TIMEOUT_S)

    def _refuse_for_good(self, error: BaseException) -> None:
        code, details = _code(error), _reason(error)
        stale = "auth token" in details or "auth store is old" in details  # the next connection authenticates again
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
        if self._away_since is None and self._give_up_at is None:
            self._away_since = boottime()
            logger.warning("etcd cannot be reached (%s): the workers go on, changes of the world wait for it", reason)

    def _succeeded(self) -> None:
        self._failures = self._timeouts = 0
        self._give_up_at = None
        since, self._away_since = self._away_since, None
        if since is not None:
            logger.warning("etcd is back after %.1f s", boottime() - since)


class EtcdRefusedError(StoreLostError):
    """etcd has answered that it refuses."""


class LeaseGoneError(StoreLostError):
    """The lease has expired or was revoked."""


class _Connection:
    """A connection to one member."""

    def __init__(self, channel: Any, rpc: ModuleType) -> None:
        self.channel = channel
        self.metadata: tuple[tuple[str, str], ...] = ()
        self._rpc = rpc
        self._stubs: dict[str, Any] = {}
        self._calls: set[Any] = set()
        # A stream of one request and one answer is the same as a call on the wire, and a call costs half as much here.
        self.keep_alive = channel.unary_unary(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            request_serializer=rpc.LeaseKeepAliveRequest.SerializeToString,
            response_deserializer=rpc.LeaseKeepAliveResponse.FromString,
        )

    def begin(self, method: Any, *request: Any, metadata: tuple[tuple[str, str], ...] = (), **options: Any) -> Any:
        """Start a call, to be awaited, or a stream. It ends when the client leaves the member."""
        call = method(*request, metadata=(*self.metadata, *metadata), **options)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    async def leave(self) -> None:
        for call in list(self._calls):  # grpc itself finds only some of the calls under way
            call.cancel()
        await self.channel.close()

    def stub(self, service: str) -> Any:
        if service not in self._stubs:
            self._stubs[service] = getattr(self._rpc, f"{service}Stub")(self.channel)
        return self._stubs[service]


@dataclass(frozen=True)
class _Stream:
    """The stream of a watch."""

    connection: _Connection
    call: Any


async def _write(call: Any, request: Any) -> None:
    """Write to a call. If the call ends before it is connected, a plain write waits for ever; this does not."""
    written, ended = asyncio.ensure_future(call.write(request)), asyncio.ensure_future(call.code())
    try:
        await asyncio.wait((written, ended), return_when=asyncio.FIRST_COMPLETED)
        if not written.done():
            raise ConnectionAbortedError("the watch was ended")
        await written
    finally:
        written.cancel()
        ended.cancel()


def _event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of all clients in this process: grpc has one poller per process."""
    with _LOOP_LOCK:
        return _event_loop_of(os.getpid())


_LOOP_LOCK = threading.Lock()


@functools.cache
def _event_loop_of(_pid: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="softrun-etcd", daemon=True).start()
    return loop


def parse_endpoints(text: str) -> tuple[str, ...]:
    """Parse HOST[:PORT][,HOST[:PORT]…], each with an optional http:// or https://. Raises UsageError."""
    endpoints = []
    if "@" in text:
        raise UsageError("--rdzv_endpoint has an '@': give HOST:PORT alone, and user and password_file in --rdzv_conf")
    for part in text.split(","):
        scheme, _, rest = part.strip().rpartition("://")
        host, separator, port = rest.rpartition(":")
        if rest.endswith("]") or not separator:
            host, port = rest, str(DEFAULT_PORT)
        named = port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) <= 65535
        valid = named and "/" not in rest and is_host(host.removeprefix("[").removesuffix("]"))
        if scheme not in ("", "http", "https") or not valid:
            raise UsageError(f"--rdzv_endpoint {text!r} is not HOST:PORT,HOST:PORT,…: {part!r} is not HOST:PORT")
        endpoints.append(f"{host}:{port}")
    return tuple(endpoints)


def _channel_credentials(grpc: ModuleType, access: EtcdAccess) -> Any:
    if not access.tls:
        return None
    check_tls_files(access.ca_cert, access.ssl_cert, access.ssl_cert_key)
    named = [(key, getattr(access, key)) for key in ("ca_cert", "ssl_cert_key", "ssl_cert")]
    return grpc.ssl_channel_credentials(*(content_of(key, name) if name is not None else None for key, name in named))


def _code(error: BaseException) -> str:
    code = getattr(error, "code", None)
    return str(code().name) if callable(code) else ""


def _reason(error: BaseException) -> str:
    details = getattr(error, "details", None)
    text = details() if callable(details) else str(error)
    return printable((text or type(error).__name__).splitlines()[0])


def _is_of_tls(reason: str) -> bool:
    return any(word in reason.lower() for word in ("ssl", "tls", "certificate", "handshake"))


# --- the package etcd3


def _load_etcd3() -> tuple[ModuleType, ModuleType]:
    """Import etcd3's messages and calls, and grpc. Raises UsageError if they are not installed."""
    if importlib.util.find_spec("etcd3") is None:
        raise UsageError("--rdzv_backend etcd3 needs the package etcd3: pip install 'softrun[etcd]'")
    with _settings_of_grpc():
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
        return  # they can be imported as they are
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
def _settings_of_grpc() -> Iterator[None]:
    """Set what grpc reads when it is loaded, unless it is set already. The workers get the environment as it was.

    Otherwise grpc would write every failed connection to standard error, and start its threads again in each forked
    process, and the next fork would wait for them in vain.
    """
    ours = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
    added = [name for name in ours if name not in os.environ]
    os.environ.update({name: ours[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
