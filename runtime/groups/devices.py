"""Which device a worker's groups are for, and whether this torch and this machine can build them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_GUESSING = ("nccl2", "nccl-lazy")


def own_device(backend: str, local_rank: int) -> torch.device | None:
    """The worker's CUDA device if the backend would guess one; None if torch finds it out by itself.

    torch's nccl2, which is behind `nccl` from torch 2.15 on, binds a group to a device when the group is built. If it
    is not told, it takes a number from the environment. The older backend takes the device of the first tensor; told a
    device, it would connect at once, and nothing could interrupt it while peers are lost.
    """
    import torch

    if any(name in _GUESSING or (name == "nccl" and _nccl_is_nccl2()) for name in _names(backend)):
        return torch.device("cuda", local_rank)
    return None


def _nccl_is_nccl2() -> bool:
    import torch
    from torch.torch_version import TorchVersion

    wanted = os.environ.get("TORCH_DIST_USE_NCCL2")
    return wanted != "0" if TorchVersion(torch.__version__) >= "2.15" else wanted == "1"


def check_backend(backend: str, device: torch.device | None) -> None:
    """Raise ValueError, which says what to do, if this torch lacks the backend or this machine the device."""
    import torch

    for name in _names(backend):
        if not _is_available(name):
            raise ValueError(
                f"the backend {name!r}: torch {torch.__version__} here is built without it; it has "
                f"{', '.join(_available())}: name one of these, or install a build of torch that has it"
            )
    if device is None and any(name.startswith("nccl") for name in _names(backend)):
        device = torch.device("cuda", 0)  # at least
    if device is not None and device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise ValueError(
            f"the device {device}: torch finds {count} CUDA devices here; start at most as many workers on this node "
            "(--nproc_per_node), pass a device_id that is there, or take the backend gloo"
        )


def _names(backend: str) -> Iterator[str]:
    """Of "cpu:gloo,cuda:nccl" gloo and nccl; of "gloo" just that."""
    for part in backend.lower().split(","):
        yield part.strip().rpartition(":")[2]


def _is_available(backend: str) -> bool:
    import torch.distributed as dist

    # torch knows such backends by name, whatever it is built with; others are there as soon as they are registered.
    asked: Any = {name: getattr(dist, f"is_{name}_available", None) for name in ("gloo", "mpi", "nccl", "ucc", "xccl")}
    known = asked.get("nccl" if backend.startswith("nccl") else backend)
    if known is not None:
        return bool(known())
    return backend in dist.Backend.backend_list


def _available() -> list[str]:
    import torch.distributed as dist

    not_real = (dist.Backend.UNDEFINED, "fake")
    return [name for name in dist.Backend.backend_list if name not in not_real and _is_available(name)]
