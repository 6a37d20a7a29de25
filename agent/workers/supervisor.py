"""The supervisor: starts, signals and reaps the local workers, and carries what they are told and what they say.

It decides nothing and holds no timers. A pidfd announces a worker's end, and the watcher of its channel its status.
"""

from __future__ import annotations

import logging
import os
import secrets
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from softrun.agent.protocol.effects import Caller, Spawn, Tell
from softrun.agent.protocol.observations import (
    Observation,
    ProgressSeen,
    StepSeen,
    StoreUsed,
    Tick,
    WorkerExited,
    WorkerReturned,
    WorkerSaid,
)
from softrun.agent.torch_elastic.elastic import ProcessFailure, WorkerSpec
from softrun.agent.workers import orphan_reaper_main as reaper
from softrun.agent.workers.adopted import Adopted, Adoption
from softrun.agent.workers.call_lines import CallLines
from softrun.agent.workers.channels import ChannelsDirectory
from softrun.agent.workers.connections import is_connected, sockets_of
from softrun.agent.workers.fork_server import TOKEN_BYTES, ForkServer
from softrun.agent.workers.logs import WorkerLogs
from softrun.agent.workers.orphan_reaper import OrphanReapers
from softrun.agent.workers.processes import Function, Process, is_stopped, signal_group, signal_main_thread
from softrun.agent.workers.spawner import Key, Spawner
from softrun.runtime.calls import Reply
from softrun.runtime.channel.channel import BELL, ENVIRONMENT_VARIABLE, ChannelError, EventWriter
from softrun.runtime.channel.progress import STACKS_SIGNAL
from softrun.runtime.channel.watcher import DirectoryWatcher
from softrun.runtime.events import WorkerEvent, WorkerState

_FAREWELL_S = 1.0

logger = logging.getLogger("softrun")


class Agent(Protocol):
    """What the supervisor calls on the agent that it works for."""

    def prepare(self, environments: dict[int, dict[str, str]]) -> None:
        """Complete the environments of the workers, by local rank, before some of them start."""

    def started(self, tell: Tell, pid: int, restarts_left: int) -> None:
        """A worker was started in a world."""

    def entered(self, tell: Tell) -> None:
        """A running worker was told its place in a world."""

    def halted(self) -> None:
        """A worker was paused, or ended."""


@dataclass(frozen=True)
class _Expected:
    """A worker that is being started."""

    tell: Tell
    restarts_left: int
    signals: list[int]
    """The signals to send as soon as it has a process."""


@dataclass
class _Worker:
    """What is known about a worker from its start until it is reaped."""

    channel: EventWriter
    mark: str
    error_file: str
    port: int
    """The port of the worker store that its environment names."""
    inherited: set[str]
    """The sockets that this agent had when the worker started."""


class Supervisor:
    """`observe` is called in the driver's thread, `post` from any thread.

    `descriptors`: this agent's listening socket and testament, with which its orphan reapers answer for it.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        start_method: str,
        fork_server: ForkServer | None,
        logs: WorkerLogs,
        agent: Agent,
        selector: selectors.BaseSelector,
        observe: Callable[[Observation], None],
        post: Callable[[Observation], None],
        descriptors: Sequence[int] = (),
    ) -> None:
        self._spec = spec
        self._token = fork_server.token if fork_server is not None else secrets.token_hex(TOKEN_BYTES)
        self._logs = logs
        self._agent = agent
        self._selector = selector
        self._observe = observe
        self._post = post
        self._workers: dict[Key, _Worker] = {}
        self._expected: dict[Key, _Expected] = {}  # workers that have no process yet
        self._processes: dict[Key, Process] = {}
        self._succeeded: dict[int, Process] = {}
        self._failed: dict[int, ProcessFailure] = {}  # by local rank, in the order in which they ended
        self._unreaped: set[Key] = set()  # they have ended, and their exit codes are not known yet
        self._signalled: set[Key] = set()
        self._allowed = (0.0, 0.0)
        self._marked = 0
        self._all_is_well = True
        self._added: dict[str, str] = {}
        self._watcher: DirectoryWatcher | None = None
        self._directory = ChannelsDirectory.make()
        try:
            self._reapers = OrphanReapers(self._token, self._directory.path, selector, descriptors)
        except OSError:
            self._directory.close()
            raise
        self._lines = CallLines(selector, observe)
        self._spawner = Spawner(spec, start_method, fork_server, selector, self._started, self._reap_all)

    @property
    def directory(self) -> Path:
        """The directory of the workers' channels, which only this user can enter."""
        return self._directory.path

    def add_to_environments(self, variables: Mapping[str, str]) -> None:
        """Give these variables to all workers that are started from now on."""
        self._added |= variables

    # --- what the driver calls

    def spawn(self, order: Spawn) -> None:
        """Start one process for each `Tell`, after making its channel and writing its first event.

        Raises ChannelError if a channel cannot be made, and SoftrunError if a process cannot start.
        """
        if self._watcher is None:
            self._watcher = DirectoryWatcher(self._directory.path, self._rung)
            self._watcher.start()
        told = {tell.local_rank: tell for tell in order.tell}
        environments = {rank: self._environment(told.get(rank)) for rank in range(self._spec.local_world_size)}
        self._agent.prepare(environments)
        files = self._logs.open(environments, set(told))
        inherited = sockets_of(os.getpid())
        for tell in order.tell:
            rank, key = tell.local_rank, (tell.local_rank, tell.launch)
            self._directory.path.mkdir(mode=0o700, exist_ok=True)  # somebody may have removed it
            channel = EventWriter.create(self._directory.path / f"worker-{rank}-{tell.launch}")
            self._marked += 1
            mark = reaper.mark_of(self._token, self._marked)
            error_file = files.error_files.get(rank, "")
            self._workers[key] = _Worker(channel, mark, error_file, tell.info.master_port, inherited)
            channel.allow(*self._allowed)
            self._lines.open(key, channel.listen)
            channel.write(self._event(tell))
            env = environments[rank] | {ENVIRONMENT_VARIABLE: str(channel.path), reaper.VARIABLE: mark}
            self._expected[key] = _Expected(tell, order.restarts_left, [])
            self._spawner.start(key, env, files.stdouts[rank], files.stderrs[rank])

    def tell(self, tell: Tell) -> None:
        """Write an event into a worker's channel. A worker that has ended is told nothing."""
        key = (tell.local_rank, tell.launch)
        worker = self._workers.get(key)
        if worker is None:
            return  # it has ended meanwhile
        try:
            worker.channel.write(self._event(tell))
        except ChannelError as error:
            # A worker that cannot be told of a change must not go on as if there were none.
            logger.warning("worker %d cannot be told of a change and is killed: %s", tell.local_rank, error)
            self.signal(*key, signal.SIGKILL)
        if tell.state is WorkerState.HEALTHY and not tell.signum:
            if self._spawner.renew(key, self._event(tell).environment()):
                worker.port = tell.info.master_port
            self._agent.entered(tell)
        else:
            self._agent.halted()

    def reply(self, callers: Sequence[Caller], reply: Reply) -> None:
        """Answer these workers' calls."""
        self._lines.reply(callers, reply)

    def look(self, local_rank: int, launch: int) -> None:
        """Observe when the worker last made progress."""
        worker = self._workers.get((local_rank, launch))
        progress = worker.channel.read_progress() if worker is not None else None
        if progress is not None:
            self._observe(ProgressSeen(local_rank, launch, progress.last_s, is_stopped(progress.pid)))

    def look_at_step(self, local_rank: int, launch: int) -> None:
        """Observe the last step that the worker has completed."""
        worker = self._workers.get((local_rank, launch))
        progress = worker.channel.read_progress() if worker is not None else None
        step, step_s = (progress.step, progress.step_s) if progress is not None else (None, 0.0)
        self._observe(StepSeen(local_rank, launch, step, step_s))

    def look_for_store(self, local_rank: int, launch: int) -> None:
        """Observe it if the worker, or a process that it has started, is connected to the store in its environment."""
        key = (local_rank, launch)
        if (process := self._processes.get(key)) is None:
            return
        worker = self._workers[key]
        if is_connected(process.pid, worker.port, worker.inherited):
            # It may have asked since its last status: a worker that asks says so before it connects.
            if (status := worker.channel.read_status()) is not None:
                self._observe(WorkerSaid(*key, status))
            self._observe(StoreUsed(local_rank, launch, worker.port))

    def show_stacks(self, local_rank: int, launch: int) -> None:
        """Have the worker write its Python stacks to its standard error. A worker that shows its progress can do so."""
        worker = self._workers.get((local_rank, launch))
        pid = worker.channel.ask_for_stacks() if worker is not None else None
        if pid is not None:
            signal_main_thread(pid, STACKS_SIGNAL)

    def allow(self, hold_at: float, leave_at: float) -> None:
        """Let the workers, including later ones, work on until then without another sign from this agent."""
        self._allowed = (hold_at, leave_at)
        for worker in self._workers.values():
            worker.channel.allow(*self._allowed)

    def listen(self) -> None:
        """Read what workers have written. Called whenever the driver wakes, since a worker may not be able to ring."""
        for key, worker in self._workers.items():
            status = worker.channel.news()
            if status is not None:
                self._observe(WorkerSaid(*key, status))

    def signal(self, local_rank: int, launch: int, signum: int) -> None:
        """Send a signal to a worker and its children; it may have ended."""
        key = (local_rank, launch)
        if key in self._expected:
            if not self._spawner.cancel(key):
                self._expected[key].signals.append(signum)
                return
            del self._expected[key]
            self._lines.close(key)
            self._workers.pop(key).channel.remove()
            self._observe(WorkerExited(local_rank, launch, -signum))
        process = self._processes.get(key)
        if process is not None:
            self._signalled.add(key)
            signal_group(process.pid, signum)
            if signum != signal.SIGKILL:
                signal_group(process.pid, signal.SIGCONT)  # other signals wait until it continues

    def release(self, local_rank: int, launch: int) -> None:
        """Let a worker end whose function has returned; it may have ended."""
        process = self._processes.get((local_rank, launch))
        if isinstance(process, Function):
            process.release()

    def failures(self) -> dict[int, ProcessFailure]:
        """How each worker ended whose last process did not exit 0, by local rank; also those that were stopped."""
        return self._failed

    def values(self) -> dict[int, Any]:
        """What the functions have returned that came to their end, by local rank."""
        return {rank: process.value() for rank, process in sorted(self._succeeded.items())}

    def give_up(self) -> None:
        """This agent ends by a fault: kill the workers, before its peers see that it has ended."""
        self._all_is_well = False
        for key, process in self._processes.items():
            if not isinstance(process, Adopted):  # such a one ends by itself when this agent is gone
                signal_group(process.pid, signal.SIGKILL)
                process.reap(_FAREWELL_S)
                reaper.kill_marked(self._workers[key].mark)

    def close(self) -> None:
        """Call this after every worker has ended, or after `give_up`."""
        all_is_well = self._all_is_well and not self._expected  # one of those may be forked right now
        self._spawner.close()
        if self._watcher is not None:
            self._watcher.stop()
        self._logs.close()
        for key, worker in self._workers.items():
            self._lines.close(key)
            worker.channel.remove()
        self._reapers.close(all_is_well)
        self._directory.close()

    # --- starting

    def _event(self, tell: Tell) -> WorkerEvent:
        adoption = self._spec.entrypoint
        return WorkerEvent(
            timestamp=time.time_ns() // 1_000_000,
            worker_info=adoption.place(tell.info) if isinstance(adoption, Adoption) else tell.info,
            worker_state=tell.state,
            change_event=tell.change,
            round=tell.round,
            fault=tell.fault,
            lost=tell.lost,
            stop_after=tell.stop_after,
            leave_after=tell.leave_after,
            preemption=tell.preemption,
            signum=tell.signum,
        )

    def _environment(self, tell: Tell | None) -> dict[str, str]:
        """The variables that torchrun gives a worker; with None, those of a rank that is not started now."""
        spec = self._spec
        env = {
            "ROLE_NAME": spec.role,
            "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
            "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
            # Agents host the worker stores, so no worker ever tries to.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        }
        if tell is not None:
            env |= self._event(tell).environment()
        return env | self._added

    def _started(self, key: Key, process: Process) -> None:
        expected = self._expected.pop(key)
        self._processes[key] = process
        end = process.exit_fd()
        self._selector.register(end, selectors.EVENT_READ, lambda _mask: self._process_ended(key, end))
        if isinstance(process, Function):
            self._selector.register(process.gate, selectors.EVENT_READ, lambda _mask: self._returned(key, process))
        self._agent.started(expected.tell, process.pid, expected.restarts_left)
        for signum in expected.signals:
            self.signal(*key, signum)

    # --- ending

    def _returned(self, key: Key, function: Function) -> None:
        self._selector.unregister(function.gate)
        if function.has_returned():
            self._observe(WorkerReturned(*key))

    def _process_ended(self, key: Key, end: int) -> None:
        self._selector.unregister(end)
        os.close(end)
        self._unreaped.add(key)
        self._reap_all()

    def _reap_all(self) -> None:
        for key in sorted(self._unreaped):
            exitcode = self._processes[key].reap()
            if exitcode is not None:
                self._unreaped.discard(key)
                self._reaped(key, self._processes.pop(key), exitcode)

    def _reaped(self, key: Key, process: Process, exitcode: int) -> None:
        worker, local_rank = self._workers.pop(key), key[0]
        if (last_words := worker.channel.read_status()) is not None:  # it may say that others wait for it
            self._observe(WorkerSaid(*key, last_words))
        self._lines.close(key)
        worker.channel.remove()
        self._succeeded.pop(local_rank, None)
        self._failed.pop(local_rank, None)
        if exitcode == 0:
            self._succeeded[local_rank] = process
        else:
            self._failed[local_rank] = _failure(local_rank, process.pid, exitcode, worker.error_file or os.devnull)
        if isinstance(process, Function):
            if process.gate in self._selector.get_map():
                self._selector.unregister(process.gate)
            process.gate.close()
        self._agent.halted()
        if (exitcode != 0 or key in self._signalled) and not isinstance(process, Adopted):
            # What it had started ends with it, unless the worker itself has ended in good order.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            reaper.kill_marked(worker.mark)
        self._signalled.discard(key)
        self._observe(WorkerExited(*key, exitcode))

    # --- what workers say

    def _rung(self, bell: Path) -> None:
        """Wake the driver, which then listens; called in the watcher's thread."""
        _, _, key = bell.stem.partition("-")
        rank, _, launch = key.partition("-")
        if bell.suffix != BELL or not (rank.isdigit() and launch.isdigit()):
            return
        worker = self._workers.get((int(rank), int(launch)))
        if worker is None:
            return
        if worker.channel.shares_memory:
            self._post(Tick())
        elif (status := worker.channel.read_status()) is not None:
            self._post(WorkerSaid(int(rank), int(launch), status))


def _failure(local_rank: int, pid: int, exitcode: int, error_file: str) -> ProcessFailure:
    """Return torch's ProcessFailure. A worker that was killed while it wrote its error file leaves half a file.

    torch would raise for that, and log it with a traceback. The first such record of a process imports torch._dynamo:
    for seconds this agent would answer nobody, and be taken for dead.
    """
    torchs_logger = logging.getLogger(ProcessFailure.__module__)
    torchs_logger.disabled = True
    try:
        return ProcessFailure(local_rank, pid, exitcode, error_file)
    except Exception as error:
        logger.warning("the error file of worker %d cannot be read (%s): %s", local_rank, error, error_file)
        return ProcessFailure(local_rank, pid, exitcode, os.devnull)
    finally:
        torchs_logger.disabled = False
