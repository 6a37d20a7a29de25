"""The wrapper's arguments: which fit together, and which have no meaning here."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from softrun.runtime.channel.channel import ENVIRONMENT_VARIABLE
from softrun.runtime.inprocess.abort import Abort
from softrun.runtime.inprocess.calls.arguments import check_callable, check_duration, check_instance
from softrun.runtime.inprocess.completion import Completion
from softrun.runtime.inprocess.compose import name_of
from softrun.runtime.inprocess.finalize import Finalize
from softrun.runtime.inprocess.health_check import HealthCheck
from softrun.runtime.inprocess.initialize import Initialize
from softrun.runtime.inprocess.rank_assignment import RankAssignment, SeatAssignment
from softrun.runtime.inprocess.store import StoreMixin
from softrun.runtime.inprocess.terminate import Terminate

_log = logging.getLogger("softrun.runtime.inprocess")

_REASONS = {
    "store_factory": "the agents host a store for each world",
    "store_kwargs": "the agents host a store for each world",
    "monitor_thread_interval": "nothing is polled",
    "monitor_process_interval": "nothing is polled",
    "progress_watchdog_interval": "nothing is polled",
    "heartbeat_interval": "the agents' beats are set by keep_alive_interval in --rdzv_conf",
    "heartbeat_timeout": "the agents' beats are set by keep_alive_max_attempt in --rdzv_conf",
    "monitor_process_logfile": "there is no monitor process",
    "monitor_process_pidfile": "there is no monitor process",
}
_said: set[str] = set()


_FAMILIES: dict[str, tuple[type, ...]] = {
    "initialize": (Initialize,),
    "abort": (Abort,),
    "finalize": (Finalize,),
    "health_check": (HealthCheck,),
    "completion": (Completion,),
    "terminate": (Terminate,),
    "rank_assignment": (RankAssignment, SeatAssignment),
}


def check_callbacks(callbacks: Mapping[str, object]) -> None:
    """Raises TypeError if one is neither None nor can be called, or is of another family."""
    for name, callback in callbacks.items():
        if callback is not None:
            check_callable(f"Wrapper: {name}", callback, "a callback, or None")
        if isinstance(callback, type):
            raise TypeError(f"Wrapper: {name} is the class {callback.__name__}; pass an instance of it")
        kinds = {argument: family for argument, family in _FAMILIES.items() if isinstance(callback, family)}
        if kinds and name not in kinds:
            family = next(iter(kinds.values()))[0].__name__
            raise TypeError(
                f"Wrapper: {name} is {name_of(callback)}, which is a callback of another kind, {family}; "  # type: ignore[arg-type]
                f"pass it as {next(iter(kinds))}"
            )


@dataclass(frozen=True, kw_only=True)
class Durations:
    """Those arguments of the wrapper that must be in order. None: it was not given."""

    monitor_thread_interval: timedelta | None
    monitor_process_interval: timedelta | None
    heartbeat_interval: timedelta | None
    progress_watchdog_interval: timedelta | None
    soft_timeout: timedelta | None
    hard_timeout: timedelta | None
    heartbeat_timeout: timedelta | None
    barrier_timeout: timedelta | None

    def check(self) -> None:
        """Raises TypeError or ValueError with one line."""
        for field in fields(self):
            if getattr(self, field.name) is not None:
                check_duration(f"Wrapper: {field.name}", getattr(self, field.name))
        for shorter, longer in (
            ("soft_timeout", "hard_timeout"),
            ("hard_timeout", "barrier_timeout"),
            ("monitor_process_interval", "barrier_timeout"),
            ("heartbeat_timeout", "barrier_timeout"),
            ("heartbeat_interval", "heartbeat_timeout"),
            ("monitor_process_interval", "heartbeat_timeout"),
            ("monitor_process_interval", "soft_timeout"),
            ("monitor_thread_interval", "soft_timeout"),
            ("progress_watchdog_interval", "soft_timeout"),
        ):
            self._check_order(shorter, longer)

    def _check_order(self, shorter: str, longer: str) -> None:
        short, long = getattr(self, shorter), getattr(self, longer)
        if short is not None and long is not None and short >= long:
            raise ValueError(
                f"Wrapper: {shorter}={short.total_seconds():g} s must be below {longer}={long.total_seconds():g} s; "
                f"make {longer} longer"
            )


def meeting_place(store_kwargs: dict[str, Any] | None) -> tuple[str | None, int | None]:
    """The host and the port at which the ranks of another launcher are to meet. Raises TypeError with one line."""
    check_instance("Wrapper: store_kwargs", store_kwargs, (dict, type(None)), "a dict, or None")
    host, port = (store_kwargs or {}).get("host_name"), (store_kwargs or {}).get("port")
    check_instance("Wrapper: store_kwargs['host_name']", host, (str, type(None)), "a host, or None")
    check_instance("Wrapper: store_kwargs['port']", port, (int, type(None)), "a port, or None")
    return host, port


def say_what_is_not_needed(durations: Durations, **others: Any) -> None:
    """Check those of nvidia-resiliency-ext's arguments that have no meaning here, and log once which were given."""
    factory = others["store_factory"]
    if factory is not None and not (isinstance(factory, type) and issubclass(factory, StoreMixin)):
        raise TypeError("Wrapper: store_factory must be a subclass of StoreMixin, or None")
    for name in ("monitor_process_logfile", "monitor_process_pidfile"):
        check_instance(f"Wrapper: {name}", others[name], (str, type(None)), "an absolute path, or None")
        if others[name] is not None and not Path(others[name]).is_absolute():
            raise ValueError(f"Wrapper: {name} is {others[name]!r}; pass an absolute path")
    of_agents = ENVIRONMENT_VARIABLE in os.environ
    for name, value in {**vars(durations), **others}.items():
        is_used = name.startswith(("heartbeat", "store_kwargs")) and not of_agents  # by an agent for the call
        if value is not None and name in _REASONS and name not in _said and not is_used:
            _said.add(name)
            if os.environ.get("RANK", "0") == "0":
                _log.warning("Wrapper: %s is not needed: %s", name, _REASONS[name])
