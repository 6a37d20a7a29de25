"""The supervisor: starts, signals and reaps the local workers, and carries what they are told and what they say.

It decides nothing and holds no timers. A worker's end is pushed by its pidfd, its status by the watcher of its channel.
"""

from __future__ import annotations

import fcntl
import logging
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softrun.agent import warden
from softrun.agent.effects import Spawn, Tell
from softrun.agent.elastic import LogsSpecs, NumaOptions, ProcessFailure, macros
from softrun.agent.errors import SoftrunError
from softrun.agent.observations import Observation, WorkerExited, WorkerSaid
from softrun.agent.processes import Function, Process, Program, signal_group
from softrun.agent.worker_logs import WorkerLogs
from softrun.runtime.channel import ENVIRONMENT_VARIABLE, STATUS, ChannelError, EventWriter, default_root
from softrun.runtime.events import WorkerEvent
from softrun.runtime.watcher import DirectoryWatcher

_FAREWELL_S = 1.0
_WARDENS = 5

logger = logging.getLogger("softrun")

Key = tuple[int, int]
"""local rank, launch."""


@dataclass(frozen=True)
class WorkerSpec:
    """What the workers of a node run."""

    entrypoint: str | Callable[..., Any]
    args: tuple[Any, ...]
    role: str
    local_world_size: int
    run_id: str
    max_restarts: int
    start_method: str
    logs_specs: LogsSpecs
    log_line_prefix_template: str | None
    numa_options: NumaOptions | None


class Supervisor:
    """`observe` is called in the driver's thread, `post` from any."""

    def __init__(
        self,
        spec: WorkerSpec,
        node: str,
        selector: selectors.BaseSelector,
        observe: Callable[[Observation], None],
        post: Callable[[Observation], None],
    ) -> None:
        self._spec = spec
        self._node = node
        self._selector = selector
        self._observe = observe
        self._post = post
        self._directory = Path(tempfile.mkdtemp(prefix="softrun-", dir=default_root()))
        self._logs = WorkerLogs(spec.logs_specs, spec.role, spec.log_line_prefix_template)
        self._channels: dict[Key, EventWriter] = {}
        self._processes: dict[Key, Process] = {}
        self._ended: dict[Key, Process] = {}
        self._succeeded: set[Key] = set()
        self._signalled: set[Key] = set()
        self._error_files: dict[Key, str] = {}
        self._watcher: DirectoryWatcher | None = None
        # The cleaners of temporary directories leave a locked one alone, however old it is.
        self._lock = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        self._wardens = 0
        self._warden = self._start_warden()

    # --- what the driver asks for

    def spawn(self, order: Spawn) -> None:
        """Start one process for each `Tell`. Its channel and first event are there before it is.

        Raises ChannelError where they cannot be made, and SoftrunError where the process cannot.
        """
        if self._watcher is None:
            self._watcher = DirectoryWatcher(self._directory, self._status_changed, recursive=True)
            self._watcher.start()
        told = {tell.local_rank: tell for tell in order.tell}
        environments = {
            rank: self._environment(told.get(rank), order.restart_count) for rank in range(self._spec.local_world_size)
        }
        files = self._logs.open(environments, set(told))
        for tell in order.tell:
            rank, key = tell.local_rank, (tell.local_rank, tell.launch)
            channel = EventWriter.create(self._directory / f"worker-{rank}-{tell.launch}")
            self._channels[key] = channel
            channel.write(_event(tell))
            env = environments[rank] | {ENVIRONMENT_VARIABLE: str(channel.path), warden.VARIABLE: self._node}
            self._error_files[key] = files.error_files.get(rank, "")
            self._started(key, self._start(rank, env, files.stdouts[rank], files.stderrs[rank]))

    def tell(self, tell: Tell) -> None:
        channel = self._channels.get((tell.local_rank, tell.launch))
        if channel is None:
            return  # it has ended meanwhile
        try:
            channel.write(_event(tell))
        except ChannelError as error:
            # A worker that cannot be told of a change must not go on as if there were none.
            logger.warning("worker %d cannot be told of a change and is ended: %s", tell.local_rank, error)
            self.signal(tell.local_rank, tell.launch, signal.SIGKILL)

    def signal(self, local_rank: int, launch: int, signum: int) -> None:
        process = self._processes.get((local_rank, launch))
        if process is not None:
            self._signalled.add((local_rank, launch))
            signal_group(process.pid, signum)
            if signum != signal.SIGKILL:
                signal_group(process.pid, signal.SIGCONT)  # a stopped process takes no other signal

    def failure(self, local_rank: int, launch: int, exitcode: int) -> ProcessFailure:
        """What torch's ChildFailedError wants to know of a worker that failed."""
        key = (local_rank, launch)
        return ProcessFailure(
            local_rank=local_rank,
            pid=self._ended[key].pid,
            exitcode=exitcode,
            error_file=self._error_files[key] or os.devnull,
        )

    def values(self) -> dict[int, Any]:
        """What the functions that came to their end have returned, by local rank."""
        return {rank: self._ended[rank, launch].value() for rank, launch in sorted(self._succeeded)}

    def close(self) -> None:
        """After every worker has ended; one that has not, because this agent ends by a fault, is killed."""
        all_is_well = True
        for process in self._processes.values():
            signal_group(process.pid, signal.SIGKILL)
            all_is_well &= process.reap(_FAREWELL_S) is not None
        if self._watcher is not None:
            self._watcher.stop()
        self._logs.close()
        for channel in self._channels.values():
            channel.remove()
        with suppress(OSError):
            self._directory.rmdir()
        if self._warden.stdin is not None:
            with suppress(OSError):
                if all_is_well:  # else the warden goes on trying
                    self._warden.stdin.write(warden.ALL_IS_WELL)
                self._warden.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._warden.wait(_FAREWELL_S)
        os.close(self._lock)

    # --- starting

    def _environment(self, tell: Tell | None, restart_count: int) -> dict[str, str]:
        """What torchrun tells a worker through its environment, and the same for a rank that is not started now."""
        spec = self._spec
        env = {
            "ROLE_NAME": spec.role,
            "TORCHELASTIC_RESTART_COUNT": str(restart_count),
            "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
            "TORCHELASTIC_RUN_ID": spec.run_id,
            # Worker stores are hosted by agents, so no worker ever tries to host one.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        }
        if tell is not None:
            env |= tell.info.environment()
        return env

    def _start(self, local_rank: int, env: dict[str, str], out: str, err: str) -> Process:
        spec = self._spec
        args = tuple(macros.substitute(list(spec.args), str(local_rank)))
        try:
            if callable(spec.entrypoint):
                return Function(spec.start_method, spec.entrypoint, args, env, out, err, local_rank, spec.numa_options)
            return Program(spec.entrypoint, args, env, out, err, local_rank, spec.numa_options)
        except OSError as error:
            raise SoftrunError(
                f"worker {local_rank} could not be started ({spec.entrypoint}: {error.strerror}): look at this "
                "machine's limits, or correct the program"
            ) from error

    def _started(self, key: Key, process: Process) -> None:
        self._processes[key] = process
        pidfd = os.pidfd_open(process.pid)
        self._selector.register(pidfd, selectors.EVENT_READ, lambda _mask: self._process_ended(key, pidfd))

    # --- ending

    def _process_ended(self, key: Key, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        process = self._processes.pop(key)
        self._ended[key] = process
        self._channels.pop(key).remove()
        exitcode = process.reap()
        if exitcode is None:
            raise AssertionError("a worker ended and did not")
        if exitcode == 0:
            self._succeeded.add(key)
        if exitcode != 0 or key in self._signalled:
            # What it had started ends with it. One that ends by itself in good order may leave something to finish.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        self._observe(WorkerExited(*key, exitcode))

    # --- what workers say

    def _status_changed(self, path: Path) -> None:
        """In the watcher's thread."""
        _, _, key = path.parent.name.partition("-")
        rank, _, launch = key.partition("-")
        if path.name != STATUS or not (rank.isdigit() and launch.isdigit()):
            return
        channel = self._channels.get((int(rank), int(launch)))
        status = channel.read_status() if channel is not None else None
        if status is not None:
            self._post(WorkerSaid(int(rank), int(launch), status.broken_round, status.applied))

    # --- the warden

    def _start_warden(self) -> subprocess.Popen[bytes]:
        self._wardens += 1
        command = [sys.executable, "-I", "-S", warden.__file__, self._node, str(self._directory)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        pidfd = os.pidfd_open(process.pid)
        self._selector.register(pidfd, selectors.EVENT_READ, lambda _mask: self._warden_ended(pidfd))
        return process

    def _warden_ended(self, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        self._warden.communicate()
        if self._wardens < _WARDENS:
            self._warden = self._start_warden()
        else:
            logger.warning("the warden does not stay up: if this agent is killed, its workers may outlive it")


def _event(tell: Tell) -> WorkerEvent:
    return WorkerEvent(
        timestamp=time.time_ns() // 1_000_000,
        worker_info=tell.info,
        worker_state=tell.state,
        change_event=tell.change,
        round=tell.round,
    )
