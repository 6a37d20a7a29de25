"""Callbacks that get the function out of whatever it waits for, on the ranks where it would wait for ever."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softrun.runtime.groups.abort import Abort, AbortProcessGroups, AbortTransformerEngine
from softrun.runtime.groups.leftovers.checkpoint_process import kill_checkpoint_process
from softrun.runtime.inprocess.calls.arguments import check_instance
from softrun.runtime.nccl import write_records

__all__ = [
    "Abort",
    "AbortPersistentCheckpointProcesses",
    "AbortProcessGroups",
    "AbortTorchDistributed",
    "AbortTransformerEngine",
]

_log = logging.getLogger("softrun.runtime.inprocess")


@dataclass(frozen=True)
class AbortTorchDistributed(AbortProcessGroups):
    """AbortProcessGroups that first writes torch's flight recorder, to `<torch_fr_trace_path>/iter_<iteration>`.

    torch's `torchfrtrace` reads such a directory. The recorder is on if TORCH_FR_BUFFER_SIZE is above 0. None: the
    directory that NVRX_FR_TRACE_PATH names, or nowhere. Stacks are left out: to take them may need the interpreter's
    lock, which a hung thread may hold.
    """

    torch_fr_trace_path: str | None = None

    def __post_init__(self) -> None:
        wanted = "the path of a directory, or None"
        check_instance(
            "AbortTorchDistributed: torch_fr_trace_path", self.torch_fr_trace_path, (str, type(None)), wanted
        )

    def __call__(self, state: Any = None) -> Any:
        path = self.torch_fr_trace_path or os.environ.get("NVRX_FR_TRACE_PATH")
        if path and state is not None:
            try:
                write_records(Path(path, f"iter_{state.iteration}", f"rank_{state.initial_rank}"))
            except Exception:
                _log.warning("the flight recorder's records could not be written", exc_info=True)
        return super().__call__(state)


class AbortPersistentCheckpointProcesses(Abort):
    """Ends the processes that torch and nvidia-resiliency-ext keep for asynchronous checkpoints, which hold groups.

    AbortProcessGroups, and so the default, ends torch's by itself.
    """

    def __call__(self, state: Any = None) -> Any:
        kill_checkpoint_process()
        nvidias: Any = sys.modules.get("nvidia_resiliency_ext.checkpointing.async_ckpt.core")
        if nvidias is not None:
            nvidias.abort_nvrx_checkpoint()
        return state
