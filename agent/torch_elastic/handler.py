"""Rendezvous handlers and their errors, as torch's programs know them.

For softrun's own backends a handler says where the nodes meet: softrun's agents do the rest. An agent of another kind,
torch's or a program's own, gets torch's rendezvous at that place instead. Other backends, registered with torch or
under the entry point group `torchrun.handlers`, give torch's handlers, which torch's own agent runs.
"""

from __future__ import annotations

import signal
from typing import ClassVar
from weakref import WeakSet

from softrun.agent.errors import PreemptedError, RendezvousError, StoreLostError, UsageError
from softrun.agent.torch_elastic.elastic import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
    SignalException,
    get_torch_handler,
)

OWN_BACKENDS = ("c10d", "etcd3", "static")
REPLACED_BACKENDS = ("etcd", "etcd-v2")
CLOSED = "this job was closed: choose another run id"


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Return the handler to put into a WorkerSpec for `softrun.LocalElasticAgent`; replaces torch's function.

    Raises UsageError for a backend that does not exist.
    """
    if params.backend in OWN_BACKENDS:
        return SoftrunRendezvousHandler(params)
    if params.backend in REPLACED_BACKENDS:
        raise UsageError(
            f"--rdzv_backend {params.backend!r} is not available: use etcd3, which speaks etcd's current protocol"
        )
    try:
        return get_torch_handler(params)
    except ValueError as error:
        raise UsageError(
            f"--rdzv_backend {params.backend!r} is refused ({error}): use {', '.join(OWN_BACKENDS)}, or a backend that "
            "a package registers under the entry point group torchrun.handlers"
        ) from error


class SoftrunRendezvousHandler(RendezvousHandler):
    """Says where the nodes of a job meet.

    softrun's agents need no more. For others it is torch's handler of that backend, which is made when it is first
    used: all agents of a job must be of the same kind. etcd3 has none.
    """

    _closed: ClassVar[WeakSet[SoftrunRendezvousHandler]] = WeakSet()
    """Those of this process that have closed their jobs, which are closed as long as these are kept."""

    def __init__(self, params: RendezvousParameters) -> None:
        self.params = params
        self._torchs: RendezvousHandler | None = None

    def get_backend(self) -> str:
        """The name of the backend: "c10d", "etcd3" or "static"."""
        return str(self.params.backend)

    def get_run_id(self) -> str:
        """The id of the job."""
        return str(self.params.run_id)

    @property
    def use_agent_store(self) -> bool:
        """True, unless torch's handler says otherwise: agents host the stores of their workers."""
        return self._torchs is None or bool(self._torchs.use_agent_store)

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the other nodes as torch's agents do. softrun's do not call it.

        Raises UsageError for etcd3, and what torch's handler raises.
        """
        return self._torch().next_rendezvous()

    def is_closed(self) -> bool:
        """Whether the job was closed by this process, or by an agent that torch's handler has met."""
        closed = any(handler._job == self._job for handler in self._closed)
        return closed or (self._torchs is not None and bool(self._torchs.is_closed()))

    def set_closed(self) -> None:
        """Close the job: agents that this process starts later raise RendezvousClosedError and, if this handler has met
        others as torch's agents do, so do they all. A job of softrun's agents that runs goes on; end its agents to end
        it. With static it does nothing, as with torch."""
        if self.params.backend == "static":
            return
        self._closed.add(self)
        if self._torchs is not None:
            self._torchs.set_closed()  # type: ignore[no-untyped-call]

    def num_nodes_waiting(self) -> int:
        """How many nodes wait for a place, as far as torch's handler knows; 0 among softrun's agents, which take them
        in by themselves."""
        return 0 if self._torchs is None else int(self._torchs.num_nodes_waiting())

    def shutdown(self) -> bool:
        """Close what torch's handler has opened. Returns whether that went well."""
        return self._torchs is None or bool(self._torchs.shutdown())

    @property
    def _job(self) -> tuple[str, str, str]:
        return self.params.backend, self.params.endpoint, self.params.run_id

    def _torch(self) -> RendezvousHandler:
        if self.is_closed():
            raise JobOverError(CLOSED)
        if self._torchs is None:
            if self.params.backend == "etcd3":
                raise UsageError(
                    "--rdzv_backend etcd3 is for softrun.LocalElasticAgent: torch's agents, and those that override "
                    "its methods, meet at c10d or static"
                )
            self._torchs = get_torch_handler(self.params)
        return self._torchs


class JoinTimeoutError(RendezvousError, RendezvousTimeoutError):
    """Too few nodes joined in time."""


class JobOverError(RendezvousError, RendezvousClosedError):
    """The job with this run id had ended before this node joined."""


class JobPreemptedError(PreemptedError, SignalException):
    """The job was told to end. `sigval` is the signal that this node got, or SIGTERM if it got none."""

    def __init__(self, reason: str, signum: int) -> None:
        sigval = signal.Signals(signum or signal.SIGTERM)
        SignalException.__init__(self, f"the job was told to end ({reason}): start it again, and it goes on", sigval)


class StoreConnectionError(StoreLostError, RendezvousConnectionError):
    """The store cannot be reached or is gone."""
