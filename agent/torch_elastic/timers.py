"""torch's file-based timers: a worker that lets one expire is ended, which is a failure like any other."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from softrun.agent.torch_elastic.elastic import FileTimerServer

ENABLING_VARIABLE = "TORCHELASTIC_ENABLE_FILE_TIMER"
FILE_VARIABLE = "TORCHELASTIC_TIMER_FILE"
_INTERVAL_S = 0.1


class WorkerTimers(FileTimerServer):
    """torch's server, which would otherwise end the agent together with the worker."""

    def _reap_worker(self, worker_pid: int, signal: int) -> bool:
        return worker_pid == os.getpid() or bool(super()._reap_worker(worker_pid, signal))


def start_timers(run_id: str, log_event: Callable[..., Any]) -> tuple[WorkerTimers | None, str | None]:
    """Return the server, if the environment asks for one, and the file through which the workers reach it, if any."""
    path = os.environ.get(FILE_VARIABLE)
    if os.environ.get(ENABLING_VARIABLE) != "1":
        return None, path
    path = path or str(Path(tempfile.gettempdir()) / f"watchdog_timer_{uuid.uuid4()}")
    timers = WorkerTimers(path, run_id, max_interval=_INTERVAL_S, daemon=True, log_event=log_event)
    timers.start()
    return timers, path
