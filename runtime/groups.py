"""Torch's default process group: building it, leaving it, and getting a thread out of it that sits in a collective.

gloo has no abort: `abort` and `shutdown` of torch 2.13 free nobody (pytorch#130345). So an aborted gloo group gets the
reading side of its connections shut down underneath it: gloo reads an end of file and everybody who waits raises.

Only the reading side, and no peer may notice it. gloo forgets a payload whose writing failed, because the connection
was closed, just before it reads the end of file (`op.ubuf` is missing where gloo/transport/tcp/pair.cc signals `tx_`):
its sender then waits until the group's timeout, half an hour, and nothing frees it. So writing must go on to succeed
until all members have left: each frees itself, when its own agent says so, and each keeps a duplicate of its
connections open, whatever gloo and `destroy_process_group` close, until its next group is built, which proves that the
others have left as well.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, ClassVar

from softrun.runtime.events import WorkerInfo

# What gloo, NCCL and torch's stores say when a peer or its store is gone; gloo and NCCL raise plain RuntimeErrors.
_SYMPTOMS = (
    "gloo/transport",
    "gloo/rendezvous",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "Application timeout caused pair closure",
    "Socket Timeout",
    "NCCL",
)

ABORT_INTERVAL_S = 0.02
CONNECT_S = 1.0

_log = logging.getLogger("softrun.runtime")


class Connections:
    """The TCP connections of one default process group, known by what is opened while it is built."""

    _kept: ClassVar[list[Connections]] = []  # those of this process that were neither superseded nor let go

    def __init__(self) -> None:
        self._before = _sockets()
        self._own: list[socket.socket] = []
        self._lock = threading.Lock()
        self._settled = threading.Event()
        self._is_being_cut = False

    def settle(self, *, built: bool) -> None:
        """What is opened from now on is not the group's. Once it is built, its members have left all before it."""
        with self._lock:
            if self._settled.is_set():
                return
            self._own = list(_connections_since(self._before)) if built else []
            self._settled.set()
        if built:
            earlier, Connections._kept = Connections._kept, [self]
            for connections in earlier:
                connections.let_go()

    def cut(self) -> None:
        """Make whoever waits for one of them here raise; once they are settled no peer notices. For any thread."""
        with self._lock:
            if self._settled.is_set():
                for connection in self._own:
                    with contextlib.suppress(OSError):  # it is closed already
                        connection.shutdown(socket.SHUT_RD)
            elif not self._is_being_cut:
                self._is_being_cut = True
                threading.Thread(target=self._cut_until_settled, name="softrun-abort", daemon=True).start()

    def let_go(self) -> None:
        """Keep them open no longer than the group does."""
        with self._lock:
            while self._own:
                self._own.pop().close()

    @classmethod
    def let_go_in_child(cls) -> None:
        """A forked child shares its parent's connections: they are not its own to cut, or to keep open."""
        for connections in cls._kept:
            connections._lock = threading.Lock()
            connections.let_go()
        cls._kept = []

    def _cut_until_settled(self) -> None:
        """While a group is built it opens one connection after the other, and may wait on any of them for an hour."""
        while True:
            with self._lock:
                if self._settled.is_set():
                    return
                for connection in _connections_since(self._before):
                    with connection, contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
            self._settled.wait(ABORT_INTERVAL_S)


class Group:
    """The default process group of one world, from before it is built until it is left."""

    def __init__(self) -> None:
        self.built = False
        self._backend = ""
        self._connections = Connections()
        self._aborted = False

    def build(self, info: WorkerInfo, backend: str | None, timeout: timedelta | None) -> None:
        """Build it. A group of an earlier world that is still there is left first."""
        import torch
        import torch.distributed as dist

        if dist.is_initialized():
            _log.info("leaving the default process group that was built outside of this world")
            dist.destroy_process_group()
        self._backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        try:
            self._await_store(info.master_addr, info.master_port)
            dist.init_process_group(self._backend, timeout=timeout, **info.get_pg_parameters())
            self.built = True
        finally:
            self._connections.settle(built=self.built)
        if self._aborted:
            raise ConnectionAbortedError(f"the group of {info.world_size} workers was aborted while it was built")

    def _await_store(self, host: str, port: int) -> None:
        """Until it can be reached, or this group is aborted: torch goes on trying for half an hour, come what may."""
        while not self._aborted:
            with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=CONNECT_S):
                return
            time.sleep(ABORT_INTERVAL_S)
        raise ConnectionAbortedError(f"the group was aborted before its store at {host}:{port} was reached")

    def abort(self) -> None:
        """Make whoever sits in this group raise. For any thread; does not wait."""
        self._aborted = True
        if self.built and "nccl" in self._backend:
            _abort_device_groups()
        if not self.built or "gloo" in self._backend:
            self._connections.cut()

    def leave(self, *, in_trouble: bool) -> None:
        """Leave it at once. In trouble, other threads in it are made to raise and no peer notices before `let_go`."""
        import torch.distributed as dist

        if not self.built:
            self._connections.settle(built=False)
        if in_trouble:
            self.abort()
        if dist.is_initialized():
            try:
                dist.destroy_process_group()
            except Exception:
                _log.warning("the process group was left in disorder", exc_info=True)
        if not in_trouble:
            self.let_go()

    def let_go(self) -> None:
        """Have the peers notice that it was left."""
        self._connections.let_go()


_noted: Connections | None = None


def note_builds() -> None:
    """From now on, note the connections of a default group that the trainer builds itself, for cut_noted.

    torch holds a rendezvous handler's generator for as long as a group is built. There is no public way to wrap the
    handlers of `tcp://` and `env://`; where torch keeps them elsewhere, nothing is noted and nothing is cut.
    """
    handlers = getattr(sys.modules.get("torch.distributed.rendezvous"), "_rendezvous_handlers", {})
    for scheme in ("env", "tcp"):
        if scheme in handlers and not hasattr(handlers[scheme], "__wrapped__"):
            handlers[scheme] = _noting(handlers[scheme])


def _noting(handler: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(handler)
    def noting(*args: Any, **options: Any) -> Iterator[Any]:
        global _noted
        _noted = connections = Connections()
        try:
            yield from handler(*args, **options)
        finally:
            connections.settle(built=True)

    return noting


def cut_noted() -> None:
    """Make whoever sits in the trainer's own default group raise. For any thread."""
    if _noted is not None:
        _noted.cut()


def _begin_in_child() -> None:
    global _noted
    _noted = None
    Connections.let_go_in_child()


os.register_at_fork(after_in_child=_begin_in_child)


def has_group() -> bool:
    """Whether torch has a default process group. Never imports torch: who has not imported it has no group."""
    is_initialized = getattr(sys.modules.get("torch.distributed"), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def count_groups_anew() -> None:
    """Have the next group named as if it were the first, as it is for the newcomers of its world.

    torch names a group by a count, under which its members meet in the store. A group that could not be built has been
    counted here but not at peers that never tried: the two would wait for each other under different names.
    """
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    if hasattr(world, "group_count") and not has_group():
        world.group_count = 0


def is_lost_peer(error: BaseException | None) -> bool:
    """Whether the error, or what it came from, is what a process group raises when a peer is lost."""
    from torch.distributed import DistError

    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, DistError | ConnectionError):
            return True
        if isinstance(error, RuntimeError) and any(symptom in str(error) for symptom in _SYMPTOMS):
            return True
        error = error.__cause__ or error.__context__
    return False


def _abort_device_groups() -> None:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    abort = getattr(distributed_c10d, "_abort_process_group", None)
    if abort is not None and dist.is_initialized():
        try:
            abort()
        except Exception:
            _log.warning("the process group could not be aborted", exc_info=True)


def _sockets() -> set[int]:
    """This process's sockets by their inodes, which the kernel never uses twice at a time, unlike descriptors."""
    return set(_open_sockets().values())


def _open_sockets() -> dict[int, int]:
    """Inodes by descriptor."""
    found = {}
    with os.scandir("/proc/self/fd") as descriptors:
        for entry in descriptors:
            with contextlib.suppress(OSError):  # closed since it was listed
                status = os.fstat(int(entry.name))
                if stat.S_ISSOCK(status.st_mode):
                    found[int(entry.name)] = status.st_ino
    return found


def _connections_since(before: set[int]) -> Iterator[socket.socket]:
    """Duplicates of the TCP connections that were opened since."""
    for fd, inode in _open_sockets().items():
        if inode in before:
            continue
        try:
            duplicate = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue  # closed since it was listed
        # Another thread may have closed the descriptor and opened another socket under its number.
        if os.fstat(duplicate.fileno()).st_ino == inode and _is_connection(duplicate):
            yield duplicate
        else:
            duplicate.close()


def _is_connection(sock: socket.socket) -> bool:
    """Not a listening socket: gloo calls std::terminate when its listener is shut down."""
    is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
    return is_tcp and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
