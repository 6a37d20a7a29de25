"""Launching from programs: `launch_agent(LaunchConfig(...), entrypoint, args)`.

Code that was written for `torch.distributed.launcher.api` works by changing the import. Importing this module imports
torch.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from softrun.agent.errors import UsageError
from softrun.agent.local_agent import (
    DEFAULT_SIGNALS,
    SIGNALS_VARIABLE,
    LocalElasticAgent,
    check_time_limit,
    progress_limits,
)
from softrun.agent.protocol.checks import MOST_WORKERS
from softrun.agent.protocol.printable import printable
from softrun.agent.store.addresses import parse_endpoint
from softrun.agent.store.secrets import take_secrets
from softrun.agent.store.settings import LONGEST_S
from softrun.agent.torch_elastic.elastic import (
    ChildFailedError,
    MetricsConfig,
    RendezvousParameters,
    SignalException,
    TorchLaunchConfig,
    WorkerSpec,
    initialize_metrics,
    record_event,
)
from softrun.agent.torch_elastic.handler import OWN_BACKENDS, get_rendezvous_handler
from softrun.agent.usage import (
    check_commit,
    check_endpoint,
    check_local_addr,
    check_number,
    check_run_id,
    check_seconds,
)
from softrun.runtime.bounds import LONGEST_NAME

_TORCHS_TIMEOUT_S = 900
"""What torch's LaunchConfig gives its handlers if the user sets nothing."""

logger = logging.getLogger("softrun")


class RestartPolicy(Enum):
    """The policies that come with softrun. Give a third party's policy to LaunchConfig by its name."""

    HARD = "hard"
    SOFT = "soft"


@dataclass
class LaunchConfig(TorchLaunchConfig):
    """How to run a job. The fields are those of torch's LaunchConfig, with c10d as the default of `rdzv_backend`, and:

    restart_policy: SOFT keeps healthy workers alive, HARD restarts all of them; or the name of a third party's policy.
    worker_failure: what happens under SOFT when a worker fails: "no-replace" (the RFC's default) restarts all workers
    of its node, "replace" restarts only the failed one, "record" goes on without it.
    commit: how the agents decide on blocks of `live_workers`: "fast" by one message each way, "durable" by a change of
    the record for each.
    soft_timeout, hard_timeout: how many seconds a worker may make no progress before all workers form a new world, and
    before it is ended, which counts as its failure; None means never. A worker makes progress if its main thread
    executes byte code or, once it has called `World.ping`, if it pings. The watch begins when it asks for a world.
    time_limit: after how many seconds the job must have ended; None means no limit. `shutdown_timeout` seconds before,
    all ranks stop after the same step and save (`softrun.on_leave`), and the launch raises PreemptedError.
    warm_start: fork workers that are Python scripts from a process that has imported torch and what `preload` names.

    `monitor_interval` matters only to torch's own handlers: softrun polls nothing.
    Raises UsageError, which is a ValueError, with one line for a value that cannot be used.
    """

    rdzv_backend: str = "c10d"
    signals_to_handle: str = DEFAULT_SIGNALS
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None
    restart_policy: RestartPolicy | str = RestartPolicy.HARD
    worker_failure: str = "no-replace"
    commit: str = "fast"
    soft_timeout: float | None = None
    hard_timeout: float | None = None
    time_limit: float | None = None
    warm_start: bool = True
    preload: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise UsageError(
                f"--nnodes {self.min_nodes}:{self.max_nodes} is not a valid range of nodes: "
                "give MIN:MAX, with 1 <= MIN <= MAX"
            )
        check_number("--nnodes", self.max_nodes)
        check_number("--nproc_per_node", self.nproc_per_node, MOST_WORKERS)
        check_number("--max_restarts", self.max_restarts)
        if self.nproc_per_node < 1:
            raise UsageError(f"--nproc_per_node {self.nproc_per_node} starts no worker: give 1 or more")
        if self.max_restarts < 0:
            raise UsageError(f"--max_restarts {self.max_restarts} is less than 0: give 0 or more")
        if self.monitor_interval <= 0:
            raise UsageError(
                f"--monitor_interval {self.monitor_interval} is not greater than 0: "
                "give a number of seconds, or leave it out"
            )
        check_commit(self.commit)
        progress_limits(self.soft_timeout, self.hard_timeout)
        for flag in ("monitor_interval", "soft_timeout", "hard_timeout", "time_limit"):
            check_seconds(f"--{flag}", getattr(self, flag))
        self.shutdown_timeout = _shutdown_timeout(self.shutdown_timeout)
        check_time_limit(self.time_limit, self.shutdown_timeout)
        check_run_id(str(self.run_id))
        check_local_addr(self.local_addr)
        self.role = printable(self.role, LONGEST_NAME)  # other agents take no other
        for signal_name in self.signals_to_handle.split(","):
            if signal_name.strip() not in signal.Signals.__members__ or signal_name.strip() in ("SIGKILL", "SIGSTOP"):
                raise UsageError(f"--signals_to_handle has {signal_name!r}: name signals that can be handled")
        said = dict(self.rdzv_configs)
        if self.rdzv_timeout != -1:
            said["timeout"] = self.rdzv_timeout
        super().__post_init__()  # type: ignore[no-untyped-call] # torch's
        self.rdzv_configs = said  # without the timeout that torch adds

    @property
    def policy_name(self) -> str:
        """The name of the restart policy, whichever way it was given."""
        policy = self.restart_policy
        return policy.value if isinstance(policy, RestartPolicy) else policy


class elastic_launch:  # noqa: N801 - torch's name
    """`elastic_launch(config, entrypoint)(*args)`, like torch's."""

    def __init__(
        self, config: LaunchConfig, entrypoint: Callable[..., Any] | str, health_check_server: Any = None
    ) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args), self._health_check_server)


def launch_agent(
    config: LaunchConfig, entrypoint: Callable[..., Any] | str, args: list[Any], health_check_server: Any = None
) -> dict[int, Any]:
    """Run this node's part of the job until it ends; returns what each local worker returned, by global rank.

    `entrypoint` is a function, which each worker calls with `args`, or a program, which gets `args` as its command
    line: `launch_agent(config, sys.executable, ["-u", "train.py", "--lr", "0.1"])`. A name ending in `.py` is run by
    this Python. Programs return None.

    Raises torch's ChildFailedError if this node's workers failed for good, its SignalException after a signal that made
    this node leave, and a SoftrunError with one line for everything else that ends the job.
    """
    take_secrets()
    if not isinstance(config, LaunchConfig):
        raise UsageError(
            f"config is {type(config).__name__} of {type(config).__module__}: make it of softrun's LaunchConfig"
        )
    entrypoint, args = _as_command(entrypoint, args)
    if not config.run_id:
        config.run_id = str(uuid.uuid4().int)
        logger.warning("LaunchConfig has no run_id: using %s", config.run_id)
    os.environ[SIGNALS_VARIABLE] = config.signals_to_handle
    agent = _agent(config, entrypoint, args, health_check_server)
    spec = agent.get_worker_group().spec
    over = True
    try:
        initialize_metrics(MetricsConfig(config.metrics_cfg))
        result = agent.run()
        record_event(agent.get_event_succeeded(), config.event_log_handler)
        if result.is_failed():
            raise ChildFailedError(_name(entrypoint, args), result.failures)
        return dict(result.return_values)
    except ChildFailedError:
        raise
    except Exception as error:
        over = not isinstance(error, SignalException)  # the others go on without this node
        record_event(agent.get_event_failed(), config.event_log_handler)
        raise
    finally:
        if over:
            spec.rdzv_handler.shutdown()


def _agent(
    config: LaunchConfig, entrypoint: Callable[..., Any] | str, args: list[Any], health_check_server: Any
) -> LocalElasticAgent:
    own = config.rdzv_backend in OWN_BACKENDS
    if not config.rdzv_backend:
        raise UsageError(f"--rdzv_backend is empty: use {', '.join(OWN_BACKENDS)}, or leave it out")
    if own:
        check_endpoint(config.rdzv_endpoint)
    try:
        params = RendezvousParameters(
            backend=config.rdzv_backend,
            endpoint=config.rdzv_endpoint,
            run_id=config.run_id,
            min_nodes=config.min_nodes,
            max_nodes=config.max_nodes,
            local_addr=config.local_addr,
            **(config.rdzv_configs if own else {"timeout": _TORCHS_TIMEOUT_S, **config.rdzv_configs}),
        )
    except TypeError as error:
        raise UsageError(f"--rdzv_conf is refused ({error}): leave out what is a flag of its own") from error
    master = parse_endpoint(config.rdzv_endpoint) if config.rdzv_backend == "static" else (None, None)
    spec = WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=entrypoint,
        args=tuple(args),
        rdzv_handler=get_rendezvous_handler(params),
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        master_addr=master[0],
        master_port=master[1],
        local_addr=config.local_addr,
        event_log_handler=config.event_log_handler,
        numa_options=config.numa_options,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        virtual_local_rank=config.virtual_local_rank,
    )
    if config.logs_specs is None or config.shutdown_timeout is None:
        raise AssertionError("LaunchConfig fills both in")
    return LocalElasticAgent(
        spec,
        config.logs_specs,
        start_method=config.start_method,
        log_line_prefix_template=config.log_line_prefix_template,
        shutdown_timeout=config.shutdown_timeout,
        health_check_server=health_check_server,
        restart_policy=config.policy_name,
        worker_failure=config.worker_failure,
        commit=config.commit,
        soft_timeout=config.soft_timeout,
        hard_timeout=config.hard_timeout,
        time_limit=config.time_limit,
        preload=config.preload if config.warm_start else None,
    )


def _shutdown_timeout(given: int | None) -> int:
    source = "--shutdown_timeout"
    value: int | str | None = given
    if value is None:
        source, value = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30")
    try:
        seconds = int(value)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= LONGEST_S:
        raise UsageError(f"{source} {value} is not a number of seconds: give 0 or more")
    return seconds


def _name(entrypoint: Callable[..., Any] | str, args: list[Any]) -> str:
    """What torch's launcher calls the entry point in its report."""
    if callable(entrypoint):
        return entrypoint.__name__
    if entrypoint != sys.executable:
        return entrypoint
    return next((str(arg) for arg in args if not str(arg).startswith("-")), "")


def _as_command(entrypoint: Callable[..., Any] | str, args: list[Any]) -> tuple[Callable[..., Any] | str, list[Any]]:
    """The program and its arguments. Raises UsageError if the program or its script does not exist."""
    if callable(entrypoint):
        return entrypoint, args
    if not isinstance(entrypoint, str) or not entrypoint:
        raise UsageError(f"entrypoint {entrypoint!r} cannot be run: give a function, or the name of a program")
    if entrypoint.endswith(".py") and not os.access(entrypoint, os.X_OK):
        entrypoint, args = sys.executable, ["-u", entrypoint, *args]
    script = _script_of(entrypoint, args)
    if script is not None:
        _check_script(script)
    if script is None and shutil.which(entrypoint) is None:
        raise UsageError(f"the program {entrypoint!r} does not exist or is not executable: correct its name or PATH")
    return entrypoint, args


def _check_script(script: Path) -> None:
    """Raises UsageError if Python could not even begin to run it."""
    named = f"the training script {str(script)!r}"
    if not os.path.exists(script):  # noqa: PTH110 - Path's raises OSError for a long name
        raise UsageError(f"{named} does not exist: correct its path (here is {Path.cwd()})")
    if script.is_dir() and not any(script.glob("__main__.py*")):
        raise UsageError(f"{named} is a folder without __main__.py: give the file in it that is to run")
    if not os.access(script, os.R_OK):
        raise UsageError(f"{named} cannot be read: give this user the right to, or correct its path")


def _script_of(entrypoint: str, args: list[Any]) -> Path | None:
    """The script that a Python command line runs; None for a module, for code, or if the program is not Python."""
    if entrypoint != os.environ.get("PYTHON_EXEC", sys.executable):
        return None
    words = iter(map(str, args))
    for word in words:
        if word in ("-m", "-c", "-"):
            return None
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(words, None)
        elif not word.startswith("-"):
            return None if "${" in word else Path(word)
    return None
