"""The wrapper: after any fault it calls a training function again, in its process, on every healthy rank."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from softrun.runtime.bounds import LONGEST_WAIT_S
from softrun.runtime.events import ProgressLimits
from softrun.runtime.inprocess.abort import AbortTorchDistributed
from softrun.runtime.inprocess.calls.arguments import check_callable, check_duration, check_instance, shown
from softrun.runtime.inprocess.calls.call import Call, Callback, Options
from softrun.runtime.inprocess.calls.call_wrapper import CallWrapper
from softrun.runtime.inprocess.calls.injection import Injection
from softrun.runtime.inprocess.calls.light_agent import Meeting
from softrun.runtime.inprocess.calls.options import Durations, check_callbacks, meeting_place, say_what_is_not_needed
from softrun.runtime.inprocess.calls.seating import Assignment
from softrun.runtime.inprocess.compose import Compose, name_of
from softrun.runtime.inprocess.health_check import ChainedGPUHealthCheck, ChainedNicHealthCheck, ChainedNVLHealthCheck
from softrun.runtime.inprocess.state import FrozenState, State
from softrun.runtime.inprocess.store import StoreMixin
from softrun.runtime.worlds import World

__all__ = ["CallWrapper", "Wrapper"]


class Wrapper:
    """A decorator, or a call: `Wrapper(initialize=RetryController(5))(train)(config)`.

    The function is called again with the same arguments. A parameter annotated with `CallWrapper`, `State` or `World`
    is filled in. The function builds its own process group, with `env://` (`RANK` and the like are set), with
    `world.info.get_pg_parameters()` or in `with world.process_group()`, and must let RestartRequest pass.

    All ranks meet before each iteration and before the wrapper returns. Each callback takes the State; see
    softrun.runtime.inprocess for when each family is called. `abort` runs once in a failed iteration, on every rank, in
    a thread: while the function still waits in a call, or after it has raised. Faults of other ranks within
    `last_call_wait` are part of the same restart. `health_check` is called before each iteration and after each fault,
    there after checks of this rank's GPU, its NVLinks and its NICs.

    If a rank makes no progress for `soft_timeout`, all ranks are restarted. If it does not take part, the others go on
    without it, and after `hard_timeout` without progress it is ended: SIGTERM, and SIGKILL after
    `termination_grace_time`. A rank that has completed waits for the others for `completion_timeout`. `enabled=False`
    leaves the function unchanged. If `barrier_timeout` is given, a rank ends when the others are not there within it.

    softrun needs none of `store_factory`, `store_kwargs`, the intervals of monitors, `monitor_process_logfile` and
    `monitor_process_pidfile`: they are checked, and a line in the log says so. The heartbeats are those of the agents.

    In a job of another launcher, such as torchrun or `srun python`, each rank has an agent of its own while the call
    lasts, whose beats `heartbeat_interval` and `heartbeat_timeout` set; a lost rank is not started again. The ranks
    meet at `store_kwargs`' `host_name` and `port`, or at MASTER_ADDR and MASTER_PORT. Raises RuntimeError with one line
    if this process is no rank of a job.
    """

    restart_health_check: Callback | None
    """What is called after a fault: `health_check`, after checks of the GPU of LOCAL_RANK and of its links."""

    def __init__(
        self,
        *unnamed: NoReturn,
        store_factory: type[StoreMixin] | None = None,
        store_kwargs: dict[str, Any] | None = None,
        initialize: Callback | None = None,
        abort: Callback | None = AbortTorchDistributed(),  # noqa: B008 - it has no state
        finalize: Callback | None = None,
        health_check: Callback | None = None,
        rank_assignment: Assignment | None = None,
        monitor_thread_interval: timedelta | None = None,
        monitor_process_interval: timedelta | None = None,
        heartbeat_interval: timedelta | None = None,
        progress_watchdog_interval: timedelta | None = None,
        soft_timeout: timedelta | None = timedelta(seconds=60),
        hard_timeout: timedelta | None = timedelta(seconds=90),
        heartbeat_timeout: timedelta | None = None,
        barrier_timeout: timedelta | None = None,
        completion_timeout: timedelta = timedelta(seconds=120),
        last_call_wait: timedelta = timedelta(0),
        termination_grace_time: timedelta = timedelta(seconds=5),
        monitor_process_logfile: str | None = None,
        monitor_process_pidfile: str | None = None,
        enabled: bool = True,
        completion: Callback | None = None,
        terminate: Callback | None = None,
    ) -> None:
        _refuse(unnamed)
        callbacks = {
            "initialize": initialize,
            "abort": abort,
            "finalize": finalize,
            "health_check": health_check,
            "completion": completion,
            "terminate": terminate,
        }
        check_callbacks({**callbacks, "rank_assignment": rank_assignment})
        durations = Durations(
            monitor_thread_interval=monitor_thread_interval,
            monitor_process_interval=monitor_process_interval,
            heartbeat_interval=heartbeat_interval,
            progress_watchdog_interval=progress_watchdog_interval,
            soft_timeout=soft_timeout,
            hard_timeout=hard_timeout,
            heartbeat_timeout=heartbeat_timeout,
            barrier_timeout=barrier_timeout,
        )
        durations.check()
        place = meeting_place(store_kwargs)
        check_duration("Wrapper: completion_timeout", completion_timeout)
        for name, value in {"termination_grace_time": termination_grace_time, "last_call_wait": last_call_wait}.items():
            if value != timedelta(0):
                check_duration(f"Wrapper: {name}", value)
        if last_call_wait.total_seconds() > LONGEST_WAIT_S:
            raise ValueError(
                f"Wrapper: last_call_wait is {last_call_wait.total_seconds():g} s; pass {LONGEST_WAIT_S:g} s or less"
            )
        check_instance("Wrapper: enabled", enabled, (bool,), "True or False")
        say_what_is_not_needed(
            durations,
            store_factory=store_factory,
            store_kwargs=store_kwargs,
            monitor_process_logfile=monitor_process_logfile,
            monitor_process_pidfile=monitor_process_pidfile,
        )
        self._enabled = enabled
        self.restart_health_check = _with_hardware(health_check)
        self._options = Options(
            **callbacks,
            restart_health_check=self.restart_health_check,
            rank_assignment=rank_assignment,
            limits=ProgressLimits(
                soft=None if soft_timeout is None else soft_timeout.total_seconds(),
                hard=None if hard_timeout is None else hard_timeout.total_seconds(),
                grace=termination_grace_time.total_seconds(),
                barrier=None if barrier_timeout is None else barrier_timeout.total_seconds(),
            ),
            meeting=Meeting(barrier_timeout, heartbeat_interval, heartbeat_timeout, *place),
            completion_timeout=completion_timeout,
            last_call_wait_s=last_call_wait.total_seconds(),
        )

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        check_callable("Wrapper: the wrapped object", fn, "a function")
        for is_kind, kind in _NOT_RESTARTABLE.items():
            if is_kind(fn):
                raise TypeError(
                    f"Wrapper: {name_of(fn)} is {kind}, which trains nothing when it is called; "
                    "wrap the function that runs it to its end"
                )
        injection = Injection(fn, (CallWrapper, State, FrozenState, World))

        @functools.wraps(fn)
        def wrapped(*args: Any, **named: Any) -> Any:
            if not self._enabled:
                return fn(*args, **named)
            try:
                wanted = injection.wanted(args, named)
            except TypeError as error:
                raise TypeError(f"Wrapper: {name_of(fn)} cannot be called like this: {error}") from None
            return Call(self._options, fn, wanted, args, named).run()

        return wrapped


_NOT_RESTARTABLE: dict[Callable[[object], bool], str] = {
    inspect.iscoroutinefunction: "a coroutine function",
    inspect.isasyncgenfunction: "an asynchronous generator function",
    inspect.isgeneratorfunction: "a generator function",
    inspect.isclass: "a class",
}


def _with_hardware(health_check: Callback | None) -> Callback | None:
    local_rank = os.environ.get("LOCAL_RANK", "")
    if not local_rank.isdecimal():
        return health_check
    device = int(local_rank)
    checks = [ChainedGPUHealthCheck(device), ChainedNVLHealthCheck(device), ChainedNicHealthCheck(device)]
    given = [] if health_check is None else [health_check]
    return Compose(*given, *checks)


def _refuse(unnamed: tuple[object, ...]) -> None:
    if not unnamed:
        return
    if inspect.isroutine(unnamed[0]):
        raise TypeError(f"Wrapper: {name_of(unnamed[0])} was given in place of the options; write @Wrapper()")
    raise TypeError(
        f"Wrapper: {shown(unnamed[0])} was given without a name; "
        "name the option, like soft_timeout=timedelta(seconds=60)"
    )
