"""Launching from programs: `launch_agent(LaunchConfig(...), entrypoint, args)`.

`LaunchConfig` has the fields of torch's `torch.distributed.launcher.api.LaunchConfig`, and softrun's own, so code
written for torch's works by changing the import. Importing this module does not import torch; launching does.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softrun.agent.backends import choose_backend
from softrun.agent.engine import EngineConfig
from softrun.agent.errors import UsageError
from softrun.agent.model import JobSettings
from softrun.policies import RestartPolicyStrategy, WorkerFailure, load_policy

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import LogsSpecs

logger = logging.getLogger("softrun")


class RestartPolicy(Enum):
    """The policies that softrun brings. A third party's is given to LaunchConfig by its name."""

    HARD = "hard"
    SOFT = "soft"


@dataclass
class LaunchConfig:
    """How to run a job. The fields mean what they mean in torch's LaunchConfig; these are softrun's own:

    restart_policy: SOFT keeps healthy workers alive, HARD restarts all of them; or the name of a third party's policy.
    worker_failure: under SOFT, what follows when a worker fails: "no-replace" (the RFC's default), "replace", "record".

    `monitor_interval` is accepted and has no meaning here: nothing is polled.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: LogsSpecs | None = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "c10d"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None
    restart_policy: RestartPolicy | str = RestartPolicy.HARD
    worker_failure: str = "no-replace"

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise UsageError(
                f"--nnodes {self.min_nodes}:{self.max_nodes} is no range of nodes: give MIN:MAX with 1 <= MIN <= MAX"
            )
        if self.nproc_per_node < 1:
            raise UsageError(f"--nproc_per_node {self.nproc_per_node} starts no worker: give 1 or more")
        if self.max_restarts < 0:
            raise UsageError(f"--max_restarts {self.max_restarts} is less than 0: give 0 or more")
        if self.shutdown_timeout is None:
            self.shutdown_timeout = int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))
        if self.shutdown_timeout < 0:
            raise UsageError(f"--shutdown_timeout {self.shutdown_timeout} is less than 0: give seconds")
        for signal_name in self.signals_to_handle.split(","):
            if signal_name.strip() not in signal.Signals.__members__ or signal_name.strip() in ("SIGKILL", "SIGSTOP"):
                raise UsageError(f"--signals_to_handle has {signal_name!r}: name signals that can be handled")
        ignored = {
            "--virtual_local_rank": self.virtual_local_rank,
            "--event_log_handler": self.event_log_handler != "null",
            "--duplicate_stdout_filters": bool(self.duplicate_stdout_filters),
            "--duplicate_stderr_filters": bool(self.duplicate_stderr_filters),
            "metrics_cfg": bool(self.metrics_cfg),
        }
        for flag, given in ignored.items():
            if given:
                raise UsageError(f"{flag} is not supported yet: leave it out")
        if self.rdzv_timeout != -1:
            self.rdzv_configs.setdefault("join_timeout", self.rdzv_timeout)

    @property
    def policy_name(self) -> str:
        policy = self.restart_policy
        return policy.value if isinstance(policy, RestartPolicy) else policy


class elastic_launch:  # noqa: N801 - torch's name
    """`elastic_launch(config, entrypoint)(*args)`, as torch's."""

    def __init__(self, config: LaunchConfig, entrypoint: Callable[..., Any] | str) -> None:
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args))


def launch_agent(config: LaunchConfig, entrypoint: Callable[..., Any] | str, args: list[Any]) -> dict[int, Any]:
    """Run this node's part of the job until it ends; returns what each local worker returned, by global rank.

    `entrypoint` is a function, which each worker calls with `args`, or a program, which gets `args` as its command
    line: `launch_agent(config, sys.executable, ["-u", "train.py", "--lr", "0.1"])`. A name ending in `.py` is run by
    this Python. Programs return None.

    Raises torch's ChildFailedError when this node's workers failed for good, its SignalException after a signal that
    made this node leave, and a SoftrunError, in one line, for everything else that ends the job.
    """
    entrypoint, args = _as_command(entrypoint, args)
    policy = load_policy_of(config)
    if not config.run_id:
        config.run_id = str(uuid.uuid4().int)
        logger.warning("LaunchConfig has no run_id: made %s", config.run_id)
    node = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    backend = choose_backend(
        config.rdzv_backend,
        config.rdzv_endpoint,
        config.rdzv_configs,
        config.policy_name,
        config.run_id,
        node,
        config.local_addr,
    )
    rendezvous = backend.settings

    # Here, not above: this is what needs torch.
    from softrun.agent.assembly import run_agent

    engine_config = EngineConfig(
        job=JobSettings(config.min_nodes, config.max_nodes, config.policy_name, config.worker_failure),
        node=node,
        host=backend.host,
        port=0,
        role=config.role,
        local_world_size=config.nproc_per_node,
        max_restarts=config.max_restarts,
        beat_interval_s=rendezvous.keep_alive_interval,
        beat_tolerance_s=rendezvous.keep_alive_interval * rendezvous.keep_alive_max_attempt,
        join_timeout_s=rendezvous.join_timeout,
        last_call_s=rendezvous.last_call_timeout,
        close_timeout_s=rendezvous.close_timeout,
        store_timeout_s=rendezvous.read_timeout,
        grace_s=float(config.shutdown_timeout or 0),
    )

    return run_agent(config, engine_config, policy, backend.open, entrypoint, tuple(args))


def load_policy_of(config: LaunchConfig) -> RestartPolicyStrategy:
    """The policy that the config names. Raises UsageError."""
    try:
        failure = WorkerFailure(config.worker_failure)
    except ValueError:
        choices = ", ".join(variant.value for variant in WorkerFailure)
        raise UsageError(f"--worker_failure {config.worker_failure!r} is unknown: choose one of {choices}") from None
    try:
        return load_policy(config.policy_name, failure)
    except ValueError as error:
        raise UsageError(f"--restart_policy: {error}") from error


def _as_command(entrypoint: Callable[..., Any] | str, args: list[Any]) -> tuple[Callable[..., Any] | str, list[Any]]:
    """The program and its arguments. Raises UsageError for what is certainly not there."""
    if callable(entrypoint):
        return entrypoint, args
    if entrypoint.endswith(".py") and not os.access(entrypoint, os.X_OK):
        entrypoint, args = sys.executable, ["-u", entrypoint, *args]
    script = _script_of(entrypoint, args)
    if script is not None and not script.exists():
        raise UsageError(f"the training script {str(script)!r} is not there: correct its path (here is {Path.cwd()})")
    if script is None and shutil.which(entrypoint) is None:
        raise UsageError(f"the program {entrypoint!r} is not there or not executable: correct its name or PATH")
    return entrypoint, args


def _script_of(entrypoint: str, args: list[Any]) -> Path | None:
    """The script that a Python command line runs; None for a module, for code, or where the program is no Python."""
    if entrypoint != os.environ.get("PYTHON_EXEC", sys.executable):
        return None
    words = iter(map(str, args))
    for word in words:
        if word in ("-m", "-c", "-"):
            return None
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(words, None)
        elif not word.startswith("-"):
            return Path(word)
    return None
