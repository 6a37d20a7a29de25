"""The agent class, for programs that build their agent themselves: it replaces torch's LocalElasticAgent.

It is a subclass of torch's class, so what that reports (events, metrics, the health check, the file timers, the worker
group) is torch's own work, fed from softrun's run. With a handler that is not softrun's it behaves as torch's agent,
and so it does in a program that overrides the methods of which torch's run is made.

Importing this module imports torch.
"""

from __future__ import annotations

import copy
import math
import os
import secrets
import signal
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from softrun.agent.consensus.search import STRANGERS_S
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.errors import JobFailedError, StoreLostError, UsageError
from softrun.agent.loop.assembly import run_agent
from softrun.agent.loop.background import BackgroundQueue
from softrun.agent.protocol.effects import Outcome, Result, Tell
from softrun.agent.protocol.model import Address, JobSettings
from softrun.agent.store.backends import choose_backend
from softrun.agent.torch_elastic.elastic import (
    EventSource,
    LogsSpecs,
    RunResult,
    SignalException,
    TorchLocalElasticAgent,
    Worker,
    WorkerGroupState,
    WorkerSpec,
    get_logging_handler,
    known_arguments,
    put_metric,
    record_event,
)
from softrun.agent.torch_elastic.handler import (
    CLOSED,
    JobOverError,
    JobPreemptedError,
    JoinTimeoutError,
    SoftrunRendezvousHandler,
    StoreConnectionError,
)
from softrun.agent.torch_elastic.timers import FILE_VARIABLE, start_timers
from softrun.agent.usage import check_commit
from softrun.agent.workers.fork_server import ForkServer, fork_server_for
from softrun.agent.workers.logs import WorkerLogs
from softrun.agent.workers.supervisor import Supervisor
from softrun.policies import RestartPolicyStrategy, WorkerFailure, load_policy
from softrun.runtime.clock import boottime
from softrun.runtime.events import ProgressLimits

SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
OF_TORCHS_RUN = (
    "_invoke_run",
    "_initialize_workers",
    "_rendezvous",
    "_assign_worker_ranks",
    "_start_workers",
    "_monitor_workers",
    "_restart_workers",
    "_stop_workers",
    "_exit_barrier",
)
"""The methods that torch's run calls, and softrun's does not."""
_T = TypeVar("_T")


class LocalElasticAgent(TorchLocalElasticAgent):
    """Runs the workers of one node. It takes the arguments of torch's LocalElasticAgent, and:

    restart_policy: "hard", "soft", or the name of a third party's policy; worker_failure: its variant.
    commit, soft_timeout, hard_timeout: as in `softrun.LaunchConfig`.
    time_limit: after how many seconds the job has ended, to be resumed; see `softrun.LaunchConfig`.
    preload: modules, besides torch, that are already imported when a Python script starts as a worker; with None each
    worker imports everything itself.

    A subclass that overrides what torch's run calls (`_start_workers`, `_rendezvous` and the like) is run by that: with
    the restart policy "hard" only, and its nodes meet as torch's do.
    Build `spec.rdzv_handler` with `softrun.get_rendezvous_handler(RendezvousParameters(...))`. The environment variable
    TORCHELASTIC_SIGNALS_TO_HANDLE names the signals that the agent handles, as with torch's agent.
    `uninterruptible_state_timeout` matters only to torch's own handlers.
    Raises UsageError with one line for a value that cannot be used.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: int = 30,
        health_check_server: Any = None,
        uninterruptible_state_timeout: float | None = None,
        *,
        restart_policy: str = "hard",
        worker_failure: str = "no-replace",
        commit: str = "fast",
        soft_timeout: float | None = None,
        hard_timeout: float | None = None,
        preload: Sequence[str] | None = (),
        time_limit: float | None = None,
    ) -> None:
        late = known_arguments(
            TorchLocalElasticAgent.__init__,
            shutdown_timeout=shutdown_timeout,
            health_check_server=health_check_server,
            uninterruptible_state_timeout=uninterruptible_state_timeout,
        )
        super().__init__(spec, logs_specs, start_method, exit_barrier_timeout, log_line_prefix_template, **late)
        self._grace_s = shutdown_timeout
        self._policy_name, self._worker_failure = restart_policy, worker_failure
        self._policy = _load_policy(restart_policy, worker_failure)
        check_commit(commit)
        self._durable = commit == "durable"
        self._limits = progress_limits(soft_timeout, hard_timeout)
        self._time_limit_s = check_time_limit(time_limit, shutdown_timeout)
        self._preload = preload
        self._handler = spec.rdzv_handler
        if not isinstance(self._handler, SoftrunRendezvousHandler) and not self._policy.restarts_everybody():
            raise UsageError(
                f"--rdzv_backend {self._handler.get_backend()!r} is a handler made for torch, which can only "
                "restart every worker: leave --restart_policy out, or use c10d, etcd3 or static"
            )
        self._is_run_by_torch()
        try:
            get_logging_handler(spec.event_log_handler)
        except KeyError as error:
            raise UsageError(f"--event_log_handler {spec.event_log_handler!r} is not registered with torch") from error
        self._meeting_since = 0.0
        self._round = 0
        self._timer_file: str | None = None
        # Handlers of events and metrics may be slow or fail; neither must disturb the driver.
        self._telling: BackgroundQueue | None = None

    def run(self, role: str = "") -> RunResult:
        """Run this node's part of the job until it ends; returns how the workers ended.

        Raises torch's SignalException after a signal that made this node leave, and a SoftrunError with one line for
        anything but a worker's failure that ends the job. If torch has a class for that error, it is of both classes.
        """
        if not isinstance(self._handler, SoftrunRendezvousHandler) or self._is_run_by_torch():
            result: RunResult = super().run(role)
            return result
        if self._handler.is_closed():
            raise JobOverError(CLOSED)
        began = self._meeting_since = boottime()
        self._round = 0
        self._telling = BackgroundQueue("softrun-events")
        run_id = self._handler.get_run_id()
        self._worker_watchdog, self._timer_file = start_timers(run_id, self._log_watchdog_event)
        try:
            self._setup_healthcheck()
            result = self._run(self._handler)
            self._tell_all()
            self._worker_group.state = result.state
            self._total_execution_time = int(boottime() - began)
            self._record_metrics(result)
            if result.failures or result.return_values:  # a node that was never in a world has no workers to report
                self._record_worker_events(result)
            return result
        finally:
            self._total_execution_time = int(boottime() - began)
            self._tell_all()
            self._stop_watching()

    def _is_run_by_torch(self) -> bool:
        """Whether methods of which torch's run is made are this program's own. Raises UsageError if that run would not
        do what the policy says."""
        own = [name for name in OF_TORCHS_RUN if _function(self, name) is not _function(LocalElasticAgent, name)]
        if own and not self._policy.restarts_everybody():
            raise UsageError(
                f"{type(self).__name__} overrides {', '.join(own)}, which only torch's run calls, and that restarts "
                "every worker: leave restart_policy out, or do that in a policy or in the workers"
            )
        return bool(own)

    # --- what the supervisor calls

    def prepare(self, environments: dict[int, dict[str, str]]) -> None:
        """Complete the environments of workers that are about to start."""
        spec = self._worker_group.spec
        for local_rank, environment in environments.items():
            device: dict[str, str | None] = {}
            self._set_local_rank_env(device, local_rank, spec)
            environment.update({name: value for name, value in device.items() if value is not None})
            if self._timer_file is not None:
                environment[FILE_VARIABLE] = self._timer_file

    def started(self, tell: Tell, pid: int, restarts_left: int) -> None:
        """A worker was started in a world."""
        self._remaining_restarts = restarts_left
        self.entered(tell)
        worker = self._worker_group.workers[tell.local_rank]
        worker.id = pid
        self._tell_of("START", EventSource.WORKER, worker=worker)

    def entered(self, tell: Tell) -> None:
        """A worker was told of its place in a world."""
        info, group = tell.info, self._worker_group
        role = group.spec.role
        if tell.round != self._round:
            self._round = tell.round
            self._tell_of("RENDEZVOUS", EventSource.AGENT, duration_ms=(boottime() - self._meeting_since) * 1000)
            self._tell_of("ASSIGN_WORKER_RANKS", EventSource.AGENT, duration_ms=0.0)  # part of forming the world
            world = {
                "group_rank": info.group_rank,
                "group_world_size": info.group_world_size,
                "master_addr": info.master_addr,
                "master_port": info.master_port,
            }
            for name, value in world.items():
                setattr(group, name, value)
            group.state = WorkerGroupState.HEALTHY
            self._later(partial(put_metric, f"workers.{role}.remaining_restarts", self._remaining_restarts))
            self._later(partial(put_metric, f"workers.{role}.healthy", 1))
        place = Worker(info.local_rank, info.rank, info.role_rank, info.world_size, info.role_world_size)
        place.id = group.workers[tell.local_rank].id
        group.workers[tell.local_rank] = place

    def halted(self) -> None:
        """The workers' world is over, for this node at least."""
        self._meeting_since = boottime()

    # --- one run

    def _run(self, place: SoftrunRendezvousHandler) -> RunResult:
        params, spec = place.params, self._worker_group.spec
        self._check_devices(spec)
        node = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"
        try:
            backend = choose_backend(
                params.backend,
                params.endpoint,
                params.config,
                self._policy,
                params.run_id,
                node,
                params.max_nodes,
                spec.local_addr or params.local_addr,
            )
        except StoreLostError as error:
            raise StoreConnectionError(str(error)) from error
        settings = backend.settings
        named = backend.named_store is not None
        least = params.max_nodes if named else params.min_nodes  # a user who names places means all of them
        beat_s = settings.beat_interval_s(params.max_nodes)
        tolerance_s = settings.tolerance_s(params.max_nodes)
        config = EngineConfig(
            job=JobSettings(
                least,
                params.max_nodes,
                self._policy_name,
                self._worker_failure,
                named,
                tolerance_s,
                backend.witness,
                self._durable,
            ),
            node=node,
            host=backend.host,
            port=0,
            role=spec.role,
            local_world_size=spec.local_world_size,
            max_restarts=spec.max_restarts,
            preferred_rank=settings.rank,
            named_store=_meeting_place(spec, backend.named_store),
            endpoints=backend.endpoints,
            beat_interval_s=beat_s,
            beat_tolerance_s=tolerance_s,
            join_timeout_s=settings.join_timeout,
            last_call_s=settings.last_call_timeout,
            close_timeout_s=settings.close_timeout,
            search_s=backend.search_s,
            strangers_s=0.0 if backend.is_only_host else STRANGERS_S,
            exit_barrier_s=self._exit_barrier_timeout,
            grace_s=float(self._grace_s),
            time_limit_s=self._time_limit_s,
            limits=self._limits,
        )
        logs = WorkerLogs(self._logs_specs, spec, self._log_line_prefix_template)

        def supervised(*loop: Any) -> Supervisor:
            return Supervisor(spec, self._start_method, self._template(spec), logs, self, *loop)

        signals = os.environ.get(SIGNALS_VARIABLE, DEFAULT_SIGNALS).split(",")
        result, supervisor = run_agent(config, self._policy, backend, signals, supervised)
        return _outcome(result, supervisor)

    def _template(self, spec: WorkerSpec) -> ForkServer | None:
        """The fork server, if workers may be forked from one. Functions have start methods of their own."""
        if self._preload is None or callable(spec.entrypoint) or spec.numa_options is not None:
            return None
        return fork_server_for(str(spec.entrypoint), [str(arg) for arg in spec.args], self._preload)

    def _check_devices(self, spec: WorkerSpec) -> None:
        for local_rank in range(spec.local_world_size):
            try:
                self._set_local_rank_env({}, local_rank, spec)
            except ValueError as error:
                raise UsageError(f"--virtual_local_rank: {error}: start fewer workers") from error

    def _tell_of(self, state: str, source: EventSource, **facts: Any) -> None:
        handler = self._worker_group.spec.event_log_handler
        if handler == "null":
            return
        now = copy.copy(self)
        now._worker_group = copy.copy(self._worker_group)
        # torch asks the name service for this host's name, each time.
        self._later(lambda: record_event(now._construct_event(state, source, **facts), handler))

    def _later(self, tell: Callable[[], Any]) -> None:
        if self._telling is None:
            raise AssertionError("tells of a run that has not begun")
        self._telling.do(tell)

    def _tell_all(self) -> None:
        if self._telling is not None:
            self._telling.close()
            self._telling = None

    def _get_worker_state(self, worker: Worker, result: RunResult) -> str:
        """As torch's, which raises for a worker without a result: the last world left that worker behind."""
        known = worker.global_rank in result.failures or worker.global_rank in result.return_values
        return str(super()._get_worker_state(worker, result)) if known or result.is_failed() else "TERMINATED"

    def _stop_watching(self) -> None:
        for watcher in (self._worker_watchdog, self._health_check_server):
            if watcher is not None:
                watcher.stop()
        self._worker_watchdog = self._health_check_server = None

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 0) -> None:  # noqa: ARG002
        """As torch's, which forgets the shutdown timeout when it restarts the workers."""
        super()._shutdown(death_sig, **known_arguments(super()._shutdown, timeout=self._grace_s))


def _function(of: object, name: str) -> object:
    method = getattr(of, name, None)
    return getattr(method, "__func__", method)


def progress_limits(soft_timeout: float | None, hard_timeout: float | None) -> ProgressLimits:
    """The limits for a worker without progress, in seconds; None: never. Raises UsageError if they cannot be used."""
    for flag, seconds in (("--soft_timeout", soft_timeout), ("--hard_timeout", hard_timeout)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise UsageError(f"{flag} {seconds:g} is not a duration: give a number of seconds above 0, or leave it out")
    if soft_timeout is not None and hard_timeout is not None and hard_timeout <= soft_timeout:
        raise UsageError(
            f"--hard_timeout {hard_timeout:g} would end a worker before --soft_timeout {soft_timeout:g} makes it leave "
            "its world: make it longer"
        )
    return ProgressLimits(soft=soft_timeout, hard=hard_timeout)


def check_time_limit(time_limit: float | None, shutdown_timeout: float) -> float | None:
    """Return the time limit in seconds; None: there is none. Raises UsageError if it leaves no time to work."""
    if time_limit is not None and not shutdown_timeout < time_limit < math.inf:
        raise UsageError(
            f"--time_limit {time_limit:g} leaves no time to work before the {shutdown_timeout:g} s of "
            "--shutdown_timeout in which the workers save: make it longer"
        )
    return time_limit


def _meeting_place(spec: WorkerSpec, named: Address | None) -> Address | None:
    """Where the workers are to meet: the spec's host and port take precedence over the endpoint's."""
    host, port = (named.host, named.port) if named is not None else ("", 0)
    said = Address(spec.master_addr or host, spec.master_port or port)
    return said if said.host or said.port else None


def _load_policy(name: str, worker_failure: str) -> RestartPolicyStrategy:
    """Raises UsageError if there is no such policy or variant."""
    try:
        failure = WorkerFailure(worker_failure)
    except ValueError:
        choices = ", ".join(variant.value for variant in WorkerFailure)
        raise UsageError(f"--worker_failure {worker_failure!r} is unknown: choose one of {choices}") from None
    try:
        return load_policy(name, failure)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _by_rank(by_local_rank: dict[int, _T], result: Result) -> dict[int, _T]:
    """By the last global rank of each. Two that were last in different worlds can have had the same one: the second
    gets the next that nobody has."""
    last = dict(result.ranks)
    by_rank: dict[int, _T] = {}
    for local_rank, value in by_local_rank.items():
        rank = last.get(local_rank, 0)
        while rank in by_rank or (rank != last.get(local_rank) and rank in last.values()):
            rank += 1
        by_rank[rank] = value
    return by_rank


def _outcome(result: Result, supervisor: Supervisor) -> RunResult:
    match result.outcome:
        case Outcome.SUCCEEDED:
            return RunResult(WorkerGroupState.SUCCEEDED, return_values=_by_rank(supervisor.values(), result))
        case Outcome.WORKERS_FAILED:
            # The root causes first, then the workers that were stopped because of them, as torch reports it.
            failed = supervisor.failures()
            roots = [failure.local_rank for failure in result.failures]
            first = {local_rank: failed[local_rank] for local_rank in [*roots, *failed] if local_rank in failed}
            return RunResult(WorkerGroupState.FAILED, failures=_by_rank(first, result))
        case Outcome.SIGNALLED:
            signum = signal.Signals(result.signum)
            raise SignalException(f"Process {os.getpid()} got signal: {signum}", signum)
        case Outcome.PREEMPTED:
            raise JobPreemptedError(result.reason, result.signum)
        case Outcome.RENDEZVOUS_FAILED:
            raise JoinTimeoutError(result.reason)
        case Outcome.JOB_OVER:
            raise JobOverError(result.reason)
        case Outcome.STORE_LOST:
            raise StoreConnectionError(result.reason)
        case Outcome.JOB_FAILED:
            raise JobFailedError(f"the job was ended on all nodes ({result.reason}): look at their logs")
        case Outcome.USAGE:
            raise UsageError(result.reason)
