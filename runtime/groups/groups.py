"""torch's process groups, as worlds() uses them: building the default group of a world, and leaving all groups."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from softrun.runtime.events import WorkerInfo
from softrun.runtime.groups import books
from softrun.runtime.groups.abort import abort_groups
from softrun.runtime.groups.books import has_group
from softrun.runtime.groups.destroy import destroy_aside
from softrun.runtime.groups.devices import check_backend, own_device
from softrun.runtime.groups.group_registry import release_connections, retired_group_of, settle_builds, track_groups
from softrun.runtime.groups.leftovers import meshes
from softrun.runtime.groups.leftovers.compiled import drop_compiled
from softrun.runtime.groups.sockets import Address, in_short

if TYPE_CHECKING:
    import torch

# Messages of gloo, NCCL and torch's stores if a peer or its store is gone; gloo and NCCL raise plain RuntimeErrors.
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

_PEER = re.compile(r"\[([0-9a-fA-F.:]+)\]:(\d+)")

# NCCL's abort waits for its kernels; a group must not be destroyed before.
ABORT_S = 30.0

_log = logging.getLogger("softrun.runtime")


class GroupOptions(NamedTuple):
    """What a trainer asks of its default group; see `World.process_group`."""

    backend: str | None = None
    timeout: timedelta | None = None
    device_id: torch.device | int | None = None


def build_group(info: WorkerInfo, options: GroupOptions, local_rank: int) -> None:
    """Build the default group of a world. If there is a group of an earlier world, leave that first.

    Raises ValueError if this torch has no such backend, or this machine no such device.
    """
    import torch
    import torch.distributed as dist

    track_groups()
    if dist.is_initialized():
        _log.info("leaving the default process group that was built outside of this world")
        dist.destroy_process_group()
    leave_unfinished_groups()
    backend = options.backend or ("nccl" if torch.cuda.is_available() else "gloo")
    device = options.device_id if options.device_id is not None else own_device(backend, local_rank)
    if isinstance(device, int):
        device = torch.device("cuda", device)
    check_backend(backend, device)
    dist.init_process_group(backend, timeout=options.timeout, device_id=device, **info.get_pg_parameters())


def leave_groups(*, in_trouble: bool) -> None:
    """Leave all process groups of this process, whatever code built them.

    `in_trouble`: abort them first; no peer notices before the next group is built. Nothing is left behind, even if a
    group's build or destruction was interrupted at any line. Never imports torch.
    """
    settle_builds()
    if in_trouble:
        end = time.monotonic() + ABORT_S
        for thread in abort_groups():
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                _log.warning("leaving the process groups although one of them did not abort within %g s", ABORT_S)
    if in_trouble and not books.are_empty():
        destroy_aside()
    if has_group():
        import torch.distributed as dist

        try:
            dist.destroy_process_group()
        except Exception:
            _log.warning("the process group could not be destroyed in order", exc_info=True)
    if not books.are_empty():
        books.empty()
    _forget_world()
    if not in_trouble:
        release_connections()


def leave_unfinished_groups() -> None:
    """Remove what an interrupted build or destruction has left behind; a default group stays."""
    if not has_group():
        settle_builds()
        if not books.are_empty():
            destroy_aside()
        books.empty()
        _forget_world()


def _forget_world() -> None:
    meshes.end_world()
    drop_compiled()


def is_lost_peer(error: BaseException | None) -> bool:
    """Whether the error, or an error that caused it, is one that torch's groups and stores raise for a lost peer."""
    from torch.distributed import DistError

    return any(
        isinstance(each, DistError)
        or (isinstance(each, RuntimeError) and any(symptom in str(each) for symptom in _SYMPTOMS))
        for each in _origins(error)
    )


def stale_group(error: BaseException | None) -> str | None:
    """Say which group of an earlier world was used again, if that caused the error, and what to do; None if not.

    gloo's errors name the other end of a connection, which then was one of that group's. Not for errors of a build: a
    new group's port may be one that was free again.
    """
    for peer in (peer for each in _origins(error) if isinstance(each, RuntimeError) for peer in _peers(str(each))):
        if (group := retired_group_of(peer)) is not None:
            return (
                f"the process group {group}, which was built in an earlier world, was used again: build groups, and "
                "what holds them, such as DistributedDataParallel, in each world"
            )
    return None


def _peers(text: str) -> Iterator[Address]:
    for host, port in _PEER.findall(text):
        yield in_short((host, int(port)))
        yield in_short((host, socket.htons(int(port) & 0xFFFF)))  # gloo of torch 2.13 shows it in the network's order


def is_lost_connection(error: BaseException | None) -> bool:
    """As is_lost_peer, or an error of other libraries for a lost connection, which need not be to a peer."""
    return is_lost_peer(error) or any(isinstance(each, ConnectionError) for each in _origins(error))


def _origins(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
