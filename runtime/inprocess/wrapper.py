"""The wrapper: a training function that is called again, in its process, on every healthy rank, after any fault.

    world ──▶ rank assignment ──▶ Initialize ──▶ HealthCheck ──▶ the function ──▶ everybody is through ──▶ returns
      ▲                                             │ a fault here: told to the agents      │
      │                                             │ a fault elsewhere: interrupted        │
      └── the next world ◀── HealthCheck ◀── Finalize ◀── groups are left ◀── Abort ◀───────┘

The agents are the other half: they know of exceptions, deaths and hangs on any rank, and form the next world. What
happens elsewhere reaches this process as an event; a thread then aborts and interrupts the main thread. So nothing is
polled, no rank is special, and a lost rank is replaced as under any other softrun job.

Wrappers may be nested. A fault while all ranks are inside the inner one restarts that; whenever the members of the
world change, the outermost restarts, since newcomers begin there.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, NoReturn

from softrun.runtime.abort import AbortProcessGroups, abort_all
from softrun.runtime.channel import ENVIRONMENT_VARIABLE
from softrun.runtime.events import ProgressLimits, WorkerEvent, WorkerInfo
from softrun.runtime.groups import build_group, has_group, is_lost_peer, leave_groups
from softrun.runtime.inprocess.arguments import check_callable, check_duration, shown
from softrun.runtime.inprocess.compose import name_of
from softrun.runtime.inprocess.initialize import RestartAbort
from softrun.runtime.inprocess.injection import Injection
from softrun.runtime.inprocess.meeting import Meeting
from softrun.runtime.inprocess.seating import Assignment, Place, take_seat
from softrun.runtime.inprocess.state import State
from softrun.runtime.interrupt import Interrupt, RestartRequest
from softrun.runtime.worker import free_trainer_by, last_event, ping, tell_fault, wait_for_world, watch
from softrun.runtime.worlds import World, WorldChanged

TEXT_CHARACTERS = 4000  # of a traceback that every rank is told

Callback = Callable[[State], Any]

_log = logging.getLogger("softrun.runtime.inprocess")


class RankDiscarded(RestartAbort):
    """The rank assignment has no use for this rank: its process ends, and its node is without it."""


class Wrapper:
    """A decorator, or a function of a function: `Wrapper(initialize=RetryController(5))(train)(config)`.

    The function is called again with the same arguments. What it may ask for by the annotation of a parameter is given
    to it: a `CallWrapper`, the `State`, the `World`. It builds its own process group, by `env://` (`RANK` and the like
    are set), by `world.info.get_pg_parameters()` or by `with world.process_group()`, and must let RestartRequest pass.

    All ranks meet before each iteration and before the wrapper returns. Each callback takes the State; see
    softrun.runtime.inprocess for what the families are called for. `abort` runs once in an iteration that fails, on
    every rank, in a thread: while the function still sits in a call, or when it has raised itself. Faults
    of others within `last_call_wait` are part of one restart.
    Without progress for `soft_timeout` all ranks are restarted; a rank that then does not come is left out, and ended
    once it has made none for `hard_timeout`: SIGTERM, and SIGKILL after `termination_grace_time`. A rank that waits for
    others to complete waits for `completion_timeout`. `enabled=False` leaves the function as it is.

    Under torchrun, where nobody forms a second world, the function is called once and its exception is raised.
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
            "rank_assignment": rank_assignment,
            "completion": completion,
            "terminate": terminate,
        }
        for name, callback in callbacks.items():
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
        self.initialize = initialize
        self.abort = abort
        self.finalize = finalize
        self.health_check = health_check
        self.rank_assignment = rank_assignment
        self.completion = completion
        self.terminate = terminate
        self.completion_timeout = completion_timeout
        self.last_call_wait_s = last_call_wait.total_seconds()
        self.enabled = enabled
        self.limits = ProgressLimits(
            soft=None if soft_timeout is None else soft_timeout.total_seconds(),
            hard=None if hard_timeout is None else hard_timeout.total_seconds(),
            grace=termination_grace_time.total_seconds(),
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
            if not self.enabled:
                return function(*args, **named)
            try:
                wanted = injection.wanted(args, named)
            except TypeError as error:
                raise TypeError(f"Wrapper: {name_of(function)} cannot be called so: {error}") from None
            return _Call(self, function, wanted, args, named).run()

        return wrapped


class CallWrapper:
    """What the wrapped function may ask for by annotation: `def train(config, call: CallWrapper)`."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    @property
    def iteration(self) -> int:
        """0 for the first call of the function in this process."""
        return self._call.iteration

    @property
    def state(self) -> State:
        if self._call.state is None:
            raise AssertionError("a function was called without a state")
        return self._call.state

    def ping(self) -> None:
        """Say that training gets on. From the first ping of an iteration on, the timeouts want one as often."""
        ping()

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """A block that no restart begins in, such as writing a checkpoint; it is not entered once one has begun."""
        with self._call.session.interrupt.atomic():
            yield


class _Session:
    """What the nested calls of a process have in common, from the outermost's begin to its end."""

    current: ClassVar[_Session | None] = None
    _numbered: ClassVar[int] = -1  # the newest world that calls of this process were in
    _numbers: ClassVar[Counter[int]] = Counter()  # by depth, of the calls that began in that world

    def __init__(self, event: WorkerEvent) -> None:
        self.interrupt = Interrupt()
        self.calls: list[_Call] = []
        self.event = event  # of the newest world that a call was told of
        self.entered = -1  # the newest world that a call has worked in

    def next_event(self) -> WorkerEvent:
        """Of a world in which nobody has worked yet."""
        if self.event.round <= self.entered:
            self.event = wait_for_world(self.entered)
        return self.event

    def begin(self, call: _Call) -> int:
        """The depth of this call, which is now the innermost."""
        self.calls.append(call)
        depth = len(self.calls)
        self._numbers[depth] += 1
        return depth

    def enter(self, world: WorkerEvent, depth: int) -> str:
        """The name by which the ranks meet for the call of this depth."""
        self.entered = world.round
        if self.entered > self._numbered:
            # Newcomers count from here as well.
            _Session._numbered, _Session._numbers = self.entered, Counter(range(1, depth + 1))
        return f"{depth}/{self._numbers[depth]}"

    @property
    def changed(self) -> bool:
        return last_event().sequence > self.event.sequence

    @property
    def shared_depth(self) -> int:
        """Of the innermost call that all ranks are in: the reserves of one are not in those inside it."""
        return next((call.depth for call in self.calls if call.has_reserves), len(self.calls))

    def observe(self, event: WorkerEvent) -> None:
        """In the watcher's thread, which must not wait for an atomic block."""
        if event.sequence > self.event.sequence:
            request = functools.partial(self.interrupt.request, event.sequence, self.abort)
            threading.Thread(target=request, name="softrun-restart", daemon=True).start()

    def abort(self) -> None:
        for call in self.calls[-1:]:
            call.abort()


class _Call:
    """One call of a wrapped function, through all its iterations."""

    def __init__(
        self,
        wrapper: Wrapper,
        function: Callable[..., Any],
        wanted: dict[str, type],
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        self.wrapper = wrapper
        self.function = function
        self.wanted = wanted
        self.args = args
        self.named = named
        self.iteration = 0
        self.state: State | None = None
        self.session: _Session
        self.depth = 0
        self._aborted = False  # in this iteration
        self._name = ""  # by which the ranks meet for this call
        self._meeting: Meeting
        self._place: Place | None = None
        self._initial: tuple[int, int] | None = None
        self._error: BaseException | None = None

    def run(self) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("Wrapper: called in a thread; call the wrapped function in the main thread")
        if _Session.current is not None:
            return self._run_inside(_Session.current)
        if has_group():
            raise RuntimeError(
                "Wrapper: there is a process group already, which no restart could leave; "
                "build it in the wrapped function"
            )
        session = _Session(wait_for_world(-1))
        stop = free_trainer_by(session.observe)
        _Session.current = session
        try:
            with session.interrupt:
                watch(self.wrapper.limits)
                return self._iterate(session)
        finally:
            _Session.current = None
            stop()
            watch(ProgressLimits())

    def _run_inside(self, session: _Session) -> Any:
        outer, begun_with = session.calls[-1], session.event.sequence
        watch(self.wrapper.limits)
        try:
            result = self._iterate(session)
            begun_with = session.event.sequence  # the outer call goes on in the world that this one came to
        finally:
            watch(outer.wrapper.limits)
            outer.set_ranks()
            session.interrupt.resume(begun_with, session.abort)
        return result

    def _iterate(self, session: _Session) -> Any:
        self.session = session
        self.depth = session.begin(self)
        try:
            while True:
                try:
                    return self._once()
                except RestartRequest as request:
                    self._error = request
                except Exception as error:
                    self._fault(error)
                self._clean_up()
                self.iteration += 1
                event = session.next_event()
                if self.depth > 1 and (event.fault is None or event.fault.depth < self.depth):
                    raise RestartRequest(f"world {event.round} begins in an outer wrapper")
                rank = event.worker_info.rank
                if event.fault is not None:
                    _log.warning("worker %d restarts after a %s", rank, event.fault.text)
                elif event.change_event is None and isinstance(self._error, Exception):
                    # All peers are there: what looked like the loss of one was none.
                    _log.warning("worker %d restarts after an exception of its own", rank, exc_info=self._error)
        except _EndsError as end:
            self._terminate(end.error)
            raise end.error from end.error.__cause__
        except RestartRequest:
            raise
        except BaseException as error:
            self._terminate(error)
            raise
        finally:
            session.calls.pop()

    def _once(self) -> Any:
        event = self.session.next_event() if self.depth == 1 else self.session.event
        self._name = self.session.enter(event, self.depth)
        self._meeting = Meeting(event.worker_info)
        self._aborted = False
        return self.session.interrupt.run(functools.partial(self._attempt, event), event.sequence)

    def _attempt(self, event: WorkerEvent) -> Any:
        """One iteration, which may be interrupted anywhere."""
        info = self._place_among_callers(event.worker_info)
        if _agents_are_there():
            self._meeting.barrier(f"{self._name}/begin", info.world_size)
        world = self._take_place(event, info)
        self._call_back(self.wrapper.initialize)
        try:
            self._call_back(self.wrapper.health_check)
        except Exception as error:
            raise _EndsError(error) from None
        self._error = None
        state = self.state = replace(self._known_state, fn_exception=None)
        if not state.is_active:
            self._meeting.await_barrier(f"{self._name}/end")
            return None
        result = self.function(*self.args, **self.named, **self._given(world))
        if self.session.changed:
            raise RestartRequest(f"world {event.round} ended when the function returned")
        if _agents_are_there():
            self._call_back(self.wrapper.completion)
            self._meeting = Meeting(self.session.event.worker_info)
            self._meeting.barrier(f"{self._name}/end", state.active_world_size, self.wrapper.completion_timeout)
        else:
            self._call_back(self.wrapper.completion)
        return result

    def _place_among_callers(self, info: WorkerInfo) -> WorkerInfo:
        """Among those that make this call: in an outer one its active ranks, by the numbers that it gave them."""
        if self.depth == 1:
            return info
        outer = self.session.calls[self.depth - 2]._known_state
        return info.model_copy(update={"rank": outer.active_rank, "world_size": outer.active_world_size})

    def _take_place(self, event: WorkerEvent, info: WorkerInfo) -> World:
        rank, world_size, active_size, is_active = info.rank, info.world_size, info.world_size, True
        if self.wrapper.rank_assignment is not None and _agents_are_there():
            seat, seats = take_seat(self.wrapper.rank_assignment, self._meeting, self._name, info, self._place)
            if seat.discarded:
                raise RankDiscarded(f"Wrapper: rank_assignment has discarded rank {info.rank} of world {event.round}")
            rank, world_size, is_active = seat.rank, len(seats), seat.active
            active_size = sum(other.active for other in seats)
            self._place = Place(event.round, rank, world_size, seat.initial_rank)
            info = info.model_copy(update={"rank": rank, "world_size": active_size})
        self._initial = self._initial or (rank, world_size)
        self.state = State(
            rank=rank,
            world_size=world_size,
            active_rank=rank if is_active else None,
            active_world_size=active_size,
            initial_rank=self._initial[0],
            initial_world_size=self._initial[1],
            iteration=self.iteration,
            round=event.round,
            fn_exception=self._error,
        )
        self.set_ranks()
        return _WrappedWorld(event.model_copy(update={"worker_info": info}))

    def set_ranks(self) -> None:
        """Set RANK and WORLD_SIZE to what this call's function shall see."""
        if _agents_are_there() and self.state is not None:
            os.environ.update(RANK=str(self.state.rank), WORLD_SIZE=str(self.state.active_world_size))

    @property
    def has_reserves(self) -> bool:
        return self.state is not None and self.state.active_world_size < self.state.world_size

    def _given(self, world: World) -> dict[str, Any]:
        values: dict[type, Any] = {CallWrapper: CallWrapper(self), State: self.state, World: world}
        return {name: values[kind] for name, kind in self.wanted.items()}

    def _fault(self, error: Exception) -> None:
        """An exception: of this rank's own, unless a peer's loss is felt here first."""
        self._error = error
        if not _agents_are_there():
            raise error
        info, round_ = self.session.event.worker_info, self.session.event.round
        if is_lost_peer(error):
            _log.info("worker %d leaves world %d, since a peer is lost: %r", info.rank, round_, error)
        else:
            text = "".join(traceback.format_exception(error))
            shown = text if len(text) <= TEXT_CHARACTERS else "…" + text[-TEXT_CHARACTERS:]
            tell_fault(
                f"fault of rank {info.rank} of world {round_}: {shown}",
                self.session.shared_depth,
                self.wrapper.last_call_wait_s,
            )
            _log.error("worker %d has a fault in world %d, iteration %d\n%s", info.rank, round_, self.iteration, text)

    def _clean_up(self) -> None:
        self.session.interrupt.abort(self.abort)
        # They hold the model and its memory. It goes before its groups: torch may hang where a DistributedDataParallel
        # is the last to hold a gloo group.
        _clear_frames(self._error)
        leave_groups(in_trouble=True)
        if self.state is not None:
            self.state = replace(self.state, fn_exception=self._error)
            self._call_back(self.wrapper.finalize)
            self._call_back(self.wrapper.health_check)

    def _terminate(self, error: BaseException) -> None:
        if self.state is not None:
            self.state = replace(self.state, fn_exception=error)
            try:
                self._call_back(self.wrapper.terminate)
            except Exception:
                _log.exception("terminate failed; what ended the wrapper is raised")

    def _call_back(self, callback: Callback | None) -> None:
        if callback is not None:
            result = callback(self._known_state)
            if isinstance(result, State):
                self.state = result

    @property
    def _known_state(self) -> State:
        if self.state is None:
            raise AssertionError("a callback before there is a state")
        return self.state

    def abort(self) -> None:
        """Once in an iteration, in a thread: while the function still runs, unless it has ended first."""
        if self.state is not None and not self._aborted:
            self._aborted = True
            abort_all(self.state, self.wrapper.abort)


class _EndsError(BaseException):
    """What ends the wrapper although it is an Exception."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _WrappedWorld(World):
    """In a wrapper the world of one iteration: what ends it ends the function."""

    @contextmanager
    def process_group(self, backend: str | None = None, timeout: timedelta | None = None) -> Iterator[None]:
        """Be in a default process group of this world, for the block."""
        try:
            build_group(self.info, backend, timeout)
            yield
        except BaseException:
            leave_groups(in_trouble=True)
            raise
        leave_groups(in_trouble=False)

    def check(self, step: int | None = None) -> None:
        """Write the step to the step log. What has changed is raised anyway."""
        try:
            super().check(step)
        except WorldChanged as change:
            raise RestartRequest(str(change)) from None


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


def _clear_frames(error: BaseException | None) -> None:
    """Those of the exceptions that led to it, too."""
    seen: set[int] = set()
    errors = [error]
    while errors:
        one = errors.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            errors += [one.__cause__, one.__context__]


def _agents_are_there() -> bool:
    """Not under torchrun, whose agents form one world."""
    return ENVIRONMENT_VARIABLE in os.environ
