"""Rendezvous handlers and their errors, as torch's programs know them.

For softrun's own backends a handler only says where the nodes meet: the agents do the rest. Other backends, registered
with torch or under the entry point group `torchrun.handlers`, give torch's handlers, which torch's own agent runs.
"""

from __future__ import annotations

import signal

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
    """Says where the nodes of a job meet. Only softrun's agents can use it."""

    def __init__(self, params: RendezvousParameters) -> None:
        self.params = params

    def get_backend(self) -> str:
        """The name of the backend: "c10d", "etcd3" or "static"."""
        return str(self.params.backend)

    def get_run_id(self) -> str:
        """The id of the job."""
        return str(self.params.run_id)

    @property
    def use_agent_store(self) -> bool:
        """True: agents host the stores of their workers."""
        return True  # worker stores are hosted by agents

    def next_rendezvous(self) -> RendezvousInfo:
        """Raises RuntimeError: softrun's agents meet without a handler."""
        raise RuntimeError("this handler is for softrun.LocalElasticAgent, whose agents meet by themselves")

    def is_closed(self) -> bool:
        """False: an agent finds out without a handler."""
        return False

    def set_closed(self) -> None:
        """Does nothing: a node that leaves never closes the job for others."""

    def num_nodes_waiting(self) -> int:
        """Always 0: newcomers report to the leader instead."""
        return 0

    def shutdown(self) -> bool:
        """True; there is nothing to shut down."""
        return True


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
