"""The wrapper: after any fault it calls a training function again, in its process, on every healthy rank."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from softrun.runtime.events import ProgressLimits
from softrun.runtime.groups.abort import AbortProcessGroups
from softrun.runtime.inprocess.call import Call, Callback, CallWrapper, Options
from softrun.runtime.inprocess.callables.arguments import check_callable, check_duration, shown
from softrun.runtime.inprocess.callables.compose import name_of
from softrun.runtime.inprocess.callables.state import State
from softrun.runtime.inprocess.injection import Injection
from softrun.runtime.inprocess.seating import Assignment
from softrun.runtime.worlds import World


class Wrapper:
    """A decorator, or a call: `Wrapper(initialize=RetryController(5))(train)(config)`.

    The function is called again with the same arguments. A parameter annotated with `CallWrapper`, `State` or `World`
    is filled in. The function builds its own process group, with `env://` (`RANK` and the like are set), with
    `world.info.get_pg_parameters()` or in `with world.process_group()`, and must let RestartRequest pass.

    All ranks meet before each iteration and before the wrapper returns. Each callback takes the State; see
    softrun.runtime.inprocess for when each family is called. `abort` runs once in a failed iteration, on every rank, in
    a thread: while the function still waits in a call, or after it has raised. Faults of other ranks within
    `last_call_wait` are part of the same restart.
    If a rank makes no progress for `soft_timeout`, all ranks are restarted. If it does not take part, the others go on
    without it, and after `hard_timeout` without progress it is ended: SIGTERM, and SIGKILL after
    `termination_grace_time`. A rank that has completed waits for the others for `completion_timeout`. `enabled=False`
    leaves the function unchanged.

    Under torchrun, which never forms a second world, the function is called once and its exception is raised.
    """

    def __init__(
        self,
        *unnamed: NoReturn,
        initialize: Callback | None = None,
        abort: Callback | None = AbortProcessGroups(),  # noqa: B008 - it has no state
        finalize: Callback | None = None,
        health_check: Callback | None = None,
        rank_assignment: Assignment | None = None,
        completion: Callback | None = None,
        terminate: Callback | None = None,
        soft_timeout: timedelta | None = timedelta(seconds=60),
        hard_timeout: timedelta | None = timedelta(seconds=90),
        termination_grace_time: timedelta = timedelta(seconds=5),
        completion_timeout: timedelta = timedelta(seconds=120),
        last_call_wait: timedelta = timedelta(0),
        enabled: bool = True,
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
        for name, callback in {**callbacks, "rank_assignment": rank_assignment}.items():
            if callback is not None:
                check_callable(f"Wrapper: {name}", callback, "a callback, or None")
            if isinstance(callback, type):
                raise TypeError(f"Wrapper: {name} is the class {callback.__name__}; pass an instance of it")
        for name, value in {"soft_timeout": soft_timeout, "hard_timeout": hard_timeout}.items():
            if value is not None:
                check_duration(f"Wrapper: {name}", value)
        check_duration("Wrapper: completion_timeout", completion_timeout)
        for name, value in {"termination_grace_time": termination_grace_time, "last_call_wait": last_call_wait}.items():
            if value != timedelta(0):
                check_duration(f"Wrapper: {name}", value)
        if soft_timeout is not None and hard_timeout is not None and hard_timeout <= soft_timeout:
            raise ValueError(
                f"Wrapper: hard_timeout={hard_timeout.total_seconds():g} s would end a rank before "
                f"soft_timeout={soft_timeout.total_seconds():g} s restarts it; make it longer"
            )
        self._enabled = enabled
        self._options = Options(
            **callbacks,
            rank_assignment=rank_assignment,
            limits=ProgressLimits(
                soft=None if soft_timeout is None else soft_timeout.total_seconds(),
                hard=None if hard_timeout is None else hard_timeout.total_seconds(),
                grace=termination_grace_time.total_seconds(),
            ),
            completion_timeout=completion_timeout,
            last_call_wait_s=last_call_wait.total_seconds(),
        )

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        check_callable("Wrapper: the wrapped object", function, "a function")
        for is_kind, kind in _NOT_RESTARTABLE.items():
            if is_kind(function):
                raise TypeError(
                    f"Wrapper: {name_of(function)} is {kind}, which trains nothing when it is called; "
                    "wrap the function that runs it to its end"
                )
        injection = Injection(function, (CallWrapper, State, World))

        @functools.wraps(function)
        def wrapped(*args: Any, **named: Any) -> Any:
            if not self._enabled:
                return function(*args, **named)
            try:
                wanted = injection.wanted(args, named)
            except TypeError as error:
                raise TypeError(f"Wrapper: {name_of(function)} cannot be called like this: {error}") from None
            return Call(self._options, function, wanted, args, named).run()

        return wrapped


_NOT_RESTARTABLE: dict[Callable[[object], bool], str] = {
    inspect.iscoroutinefunction: "a coroutine function",
    inspect.isasyncgenfunction: "an asynchronous generator function",
    inspect.isgeneratorfunction: "a generator function",
    inspect.isclass: "a class",
}


def _refuse(unnamed: tuple[object, ...]) -> None:
    if not unnamed:
        return
    if inspect.isroutine(unnamed[0]):
        raise TypeError(f"Wrapper: {name_of(unnamed[0])} was given in place of the options; write @Wrapper()")
    raise TypeError(
        f"Wrapper: {shown(unnamed[0])} was given without a name; "
        "name the option, like soft_timeout=timedelta(seconds=60)"
    )
