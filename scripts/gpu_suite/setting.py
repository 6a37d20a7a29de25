"""Where it is checked: the backend, the ranks, their devices; and what a check finds."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist

RANKS = 4
"""HSDP takes two replicas of two shards."""


class NotCheckedError(Exception):
    """The message says why."""


class FailedError(Exception):
    """The message says what was seen instead."""


@dataclass
class Found:
    """What a check has found, in words, and its figures by name with their unit: `rebuild_ms`."""

    text: str
    figures: dict[str, float] = field(default_factory=dict)


@dataclass
class Setting:
    backend: str
    ranks: int
    timeout_s: float
    """Of each check."""
    alone: str = ""
    """Why there is only one rank, if so."""


def choose(backend: str, ranks: int | None, timeout_s: float) -> Setting:
    """A rank for each GPU, at most four; if there is one GPU, or with gloo, all of them share."""
    devices = torch.cuda.device_count() if backend == "nccl" else 0
    return Setting(backend, ranks or (min(devices, RANKS) if devices > 1 else RANKS), timeout_s)


def what_is_lacking() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU"
    return "" if dist.is_nccl_available() else f"torch {torch.__version__} is built without NCCL"


def what_is_there(setting: Setting) -> dict[str, str]:
    """The versions and devices, by what they are of."""
    there = {"torch": torch.__version__, "backend": setting.backend, "ranks": str(setting.ranks)}
    if setting.backend == "nccl":
        names = sorted({torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count())})
        there["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        there["CUDA"] = str(torch.version.cuda)
        there["GPUs"] = f"{torch.cuda.device_count()} ({', '.join(names)})"
    return there


def needs_nccl(setting: Setting, why: str) -> None:
    if setting.backend != "nccl":
        raise NotCheckedError(why)


def needs_ranks(setting: Setting, count: int) -> None:
    if setting.ranks < count:
        raise NotCheckedError(setting.alone or f"it takes {count} ranks")
