"""NCCL's errors end a world, not this process.

torch's watchdog looks at NCCL every 0.1 s. If a peer is killed and NCCL had a socket to it, the watchdog finds an error
as soon as the agents do. It holds the group's lock for a minute then, four times TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC,
so that every rank can write its flight recorder; no thread can use or leave the group meanwhile. After that it ends
the process, and so each survivor. `leave_errors_alone` tells it to do none of this.

Then nobody answers errors that are not the end of a world: a collective that timed out, or a connection lost between
two ranks that live. `ErrorWatch` does. Read in torch 2.11's ProcessGroupNCCL.cpp, and seen on an H100 with NCCL 2.28.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from softrun.runtime.groups import native
from softrun.runtime.groups.abort import backends_but_gloo

LOOK_S = 1.0
ANSWERED_S = 30.0
"""A lost peer is missed by the agents, and a new world formed, in less. torch waits for twice as long."""

_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_TEAR_DOWN = "1"
"""What torchrun sets, and so softrun."""
_NO_HANDLING = "0"
_WITH_IT = {
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",
    # Otherwise the first group of a newcomer finds an earlier world's error in the store, and ends its process.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # An error of the device reaches the trainer anyhow.
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
}
_RECORDS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""What names the file, less the rank, into which torch writes its flight recorder."""

_log = logging.getLogger("softrun.runtime")


def leave_errors_alone() -> None:
    """Tell torch's watchdog, by its environment, before a group is built. If the user wants another way, do nothing."""
    if os.environ.get(_HANDLING, _TEAR_DOWN) == _TEAR_DOWN:
        os.environ.update({_HANDLING: _NO_HANDLING, **_WITH_IT})


def are_left_alone() -> bool:
    """Whether errors of NCCL are left to softrun, and this process may have any: torch may not have been imported."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    return os.environ.get(_HANDLING) == _NO_HANDLING and getattr(c10d, "_NCCL_AVAILABLE", True)


class ErrorWatch:
    """Ends this process if one of its groups has failed and no news of another world follows, as torch would have.

    `sequence`: the number of the last event from the agents.
    """

    def __init__(self, sequence: Callable[[], int]) -> None:
        self._sequence = sequence
        self._failed: tuple[int, float] | None = None  # the last event when a group was first seen to have failed; when
        self._ended = threading.Event()
        self._thread = native.start(self._watch, "softrun-nccl-errors", recall=self._ended.set)

    def end(self) -> None:
        """Watch no more, and wait for the thread."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                error = self.unanswered(set(errors()), time.monotonic())
            except Exception:
                _log.debug("a group was destroyed meanwhile", exc_info=True)
                continue
            if error is not None:
                give_up(error)

    def unanswered(self, failed: set[str], now: float) -> str | None:
        """What has failed too long ago, given what is wrong with which kinds of groups now; None if nothing is."""
        sequence = self._sequence()
        if not failed:
            self._failed = None
        elif self._failed is None or self._failed[0] != sequence:
            self._failed = sequence, now
        elif now - self._failed[1] >= ANSWERED_S:
            return ", ".join(sorted(failed))
        return None


def errors() -> Iterator[str]:
    """What torch says is wrong with groups of this process."""
    for backend in backends_but_gloo():
        error = getattr(backend, "get_error", lambda: None)()
        if error is not None and error.name != "SUCCESS":
            yield f"{type(backend).__name__}: {error.name}"


def give_up(error: str) -> None:
    """Write the flight recorder, where torch does, and end this process, so that the agents replace it."""
    _log.critical(
        "NCCL has failed (%s), and no other world followed within %g s: this worker ends, as under torchrun",
        error,
        ANSWERED_S,
    )
    prefix = next((os.environ[name] for name in _RECORDS if os.environ.get(name)), "/tmp/nccl_trace_rank_")
    try:
        write_records(Path(prefix + os.environ.get("RANK", "0")))
    except Exception:
        _log.warning("the flight recorder's records could not be written", exc_info=True)
    os.abort()


def write_records(path: Path) -> None:
    """Write what torch's flight recorder holds, without stacks: these may need the lock of a hung interpreter."""
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(c10d, "_dump_nccl_trace", None) or getattr(c10d, "_dump_fr_trace", None)
    if dump is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dump(includeStackTraces=False))
