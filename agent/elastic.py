"""What softrun takes from `torch.distributed.elastic`, in one place, so that a change in torch meets us here.

Importing this module imports torch.
"""

from __future__ import annotations

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.api import LogsDest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, record
from torch.distributed.elastic.multiprocessing.redirects import redirect_stderr, redirect_stdout
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler, get_subprocess_handler
from torch.distributed.elastic.multiprocessing.tail_log import TailLog
from torch.distributed.elastic.utils.api import macros
from torch.distributed.run import config_from_args, get_args_parser
from torch.numa.binding import NumaOptions
from torch.numa.binding import _maybe_wrap_with_numa_binding as bind_to_numa

__all__ = [
    "ChildFailedError",
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "NumaOptions",
    "ProcessFailure",
    "SignalException",
    "SubprocessHandler",
    "TailLog",
    "bind_to_numa",
    "config_from_args",
    "get_args_parser",
    "get_subprocess_handler",
    "macros",
    "record",
    "redirect_stderr",
    "redirect_stdout",
]
