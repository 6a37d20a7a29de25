"""The step log: one JSON line for every `World.check(step)`, to see the progress of a job.

Off unless SOFTRUN_STEP_LOG names a directory. Each process appends to its own file there, `<pid>.jsonl`:
{"t": wall clock, "mono": monotonic clock, "pid", "rank", "world_size", "round", "step"}, both clocks in seconds.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

from softrun.runtime.events import WorkerInfo

ENVIRONMENT_VARIABLE = "SOFTRUN_STEP_LOG"


def is_wanted() -> bool:
    """Whether SOFTRUN_STEP_LOG is set."""
    return bool(os.environ.get(ENVIRONMENT_VARIABLE))


def log_step(info: WorkerInfo, round_: int, step: int) -> None:
    """Write the line of a completed step."""
    directory = os.environ[ENVIRONMENT_VARIABLE]
    pid = os.getpid()
    line = (
        f'{{"t": {time.time():.6f}, "mono": {time.monotonic():.6f}, "pid": {pid}, "rank": {info.rank}, '
        f'"world_size": {info.world_size}, "round": {round_}, "step": {step}}}\n'
    )
    os.write(_file(directory, pid), line.encode())


@functools.lru_cache(maxsize=1)
def _file(directory: str, pid: int) -> int:
    return os.open(Path(directory) / f"{pid}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
