"""Torch's default process group: building it, leaving it, and getting a thread out of it that sits in a collective.

Leaving must be seen by the peers, because that is how an error gets around: the ranks next to a dead one raise, leave,
and so make the next ones raise. `destroy_process_group` is not seen by them while anything still refers to the group,
and a DistributedDataParallel model does. gloo has no abort either: `abort` and `shutdown` of torch 2.13 free nobody
(pytorch#130345). So a gloo group that is left in trouble, or aborted, gets its connections shut down underneath it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

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

_log = logging.getLogger("softrun.runtime")


class Connections:
    """The TCP connections of one default process group, known by what was opened while it was built."""

    def __init__(self) -> None:
        self._before = _sockets()
        self._own: set[str] | None = None

    def settle(self) -> None:
        """The group is built: what is opened from now on is not its."""
        self._own = _sockets() - self._before

    def cut(self) -> None:
        """Shut them down: whoever waits on one of them, here or at its other end, raises. For any thread."""
        _shut_down(_sockets() - self._before if self._own is None else self._own)


class Group:
    """The default process group of one world, from before it is built until it is left."""

    def __init__(self) -> None:
        self.built = False
        self._backend = ""
        self._connections = Connections()
        self._aborted = False
        self._settled = threading.Event()  # built, or failed to be

    @property
    def notices_leavers(self) -> bool:
        """Whether a collective raises when a peer leaves. NCCL's waits on."""
        return "gloo" in self._backend and "nccl" not in self._backend

    def build(self, info: WorkerInfo, backend: str | None, timeout: timedelta | None) -> None:
        """Build it. A group of an earlier world that is still there is left first."""
        import torch
        import torch.distributed as dist

        if dist.is_initialized():
            _log.info("leaving the default process group that was built outside of this world")
            dist.destroy_process_group()
        self._backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        try:
            dist.init_process_group(self._backend, timeout=timeout, **info.get_pg_parameters())
            self._connections.settle()
            self.built = True
        finally:
            self._settled.set()
        if self._aborted:
            raise ConnectionAbortedError(f"the group of {info.world_size} workers was aborted while it was built")

    def abort(self) -> None:
        """Make whoever sits in this group raise, here and at its peers. For any thread; does not wait."""
        first, self._aborted = not self._aborted, True
        if self.built and "nccl" in self._backend:
            _abort_device_groups()
        if not self.built or "gloo" in self._backend:
            self._connections.cut()
        if first and not self._settled.is_set():
            threading.Thread(target=self._cut_until_settled, name="softrun-abort", daemon=True).start()

    def _cut_until_settled(self) -> None:
        """While a group is built it opens one connection after the other, and may wait on any of them for an hour."""
        while not self._settled.wait(ABORT_INTERVAL_S):
            self._connections.cut()

    def leave(self, *, in_trouble: bool) -> None:
        """Leave it at once. In trouble the peers, who may wait for this rank, are made to raise as well."""
        import torch.distributed as dist

        self._settled.set()
        if in_trouble:
            self.abort()
        if dist.is_initialized():
            try:
                dist.destroy_process_group()
            except Exception:
                _log.warning("the process group was left in disorder", exc_info=True)


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
            connections.settle()

    return noting


def cut_noted() -> None:
    """Make whoever sits in the trainer's own default group raise, here and at its peers. For any thread."""
    if _noted is not None:
        _noted.cut()


def _forget_noted() -> None:
    """A forked child shares its parent's connections: they are not its own to cut."""
    global _noted
    _noted = None


os.register_at_fork(after_in_child=_forget_noted)


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


def _sockets() -> set[str]:
    """This process's sockets by the names that the kernel never uses twice at a time, unlike descriptors."""
    return set(_open_sockets().values())


def _open_sockets() -> dict[int, str]:
    found = {}
    with os.scandir("/proc/self/fd") as descriptors:
        for entry in descriptors:
            with contextlib.suppress(OSError):  # closed since it was listed
                target = os.readlink(entry.path)  # noqa: PTH115 - a pathlib.Path cannot hold "socket:[123]" faithfully
                if target.startswith("socket:"):
                    found[int(entry.name)] = target
    return found


def _shut_down(names: set[str]) -> None:
    """Shut down those of the named sockets that are TCP connections."""
    for fd, name in _open_sockets().items():
        if name not in names:
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
            # Not a listening socket: gloo calls std::terminate when its listener is shut down.
            is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
            if is_tcp and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                connection.shutdown(socket.SHUT_RDWR)
