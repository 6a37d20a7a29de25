"""What softrun takes from `torch.distributed.elastic`, in one place, so that a change in torch meets us here.

Importing this module imports torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.distributed.argparse_util import check_env as FlagInEnvironment  # noqa: N812 - another
from torch.distributed.argparse_util import env as EnvironmentDefault  # noqa: N812 - it is a class, an argparse action
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.api import WorkerState as WorkerGroupState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent as TorchLocalElasticAgent
from torch.distributed.elastic.events import record as record_event
from torch.distributed.elastic.events.api import EventSource
from torch.distributed.elastic.events.handlers import get_logging_handler
from torch.distributed.elastic.metrics import initialize_metrics
from torch.distributed.elastic.metrics.api import MetricsConfig, put_metric
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.api import LogsDest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, record
from torch.distributed.elastic.multiprocessing.redirects import redirect_stderr, redirect_stdout
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.multiprocessing.tail_log import TailLog
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler as get_torch_handler
from torch.distributed.elastic.timer.file_based_local_timer import FileTimerServer
from torch.distributed.elastic.utils.api import macros
from torch.distributed.launcher.api import LaunchConfig as TorchLaunchConfig
from torch.distributed.run import config_from_args, get_args_parser
from torch.numa.binding import NumaOptions
from torch.numa.binding import _maybe_wrap_with_numa_binding as _wrap_with_numa_binding

__all__ = [
    "ChildFailedError",
    "DefaultLogsSpecs",
    "EnvironmentDefault",
    "EventSource",
    "FileTimerServer",
    "FlagInEnvironment",
    "LogsDest",
    "LogsSpecs",
    "MetricsConfig",
    "NumaOptions",
    "ProcessFailure",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousHandler",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousTimeoutError",
    "RunResult",
    "SignalException",
    "Std",
    "SubprocessHandler",
    "TailLog",
    "TorchLaunchConfig",
    "TorchLocalElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerGroupState",
    "WorkerSpec",
    "bind_to_numa",
    "config_from_args",
    "get_args_parser",
    "get_logging_handler",
    "get_torch_handler",
    "initialize_metrics",
    "known_arguments",
    "macros",
    "put_metric",
    "record",
    "record_event",
    "redirect_stderr",
    "redirect_stdout",
]


def known_arguments(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Return the arguments that this release of torch knows: some were added lately, or renamed."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in known}


def bind_to_numa(function: Callable[..., Any], local_rank: int, numa_options: NumaOptions | None) -> Callable[..., Any]:
    """Return the function bound to the processors near the device of this local rank."""
    # gpu_index until torch 2.14, device_index since.
    index = known_arguments(_wrap_with_numa_binding, gpu_index=local_rank, device_index=local_rank)
    bound: Callable[..., Any] = _wrap_with_numa_binding(function, numa_options=numa_options, **index)
    return bound
