"""One call of a wrapped function, through all its iterations.

    world ──▶ rank assignment ──▶ Initialize ──▶ HealthCheck ──▶ the function ──▶ everybody is through ──▶ returns
      ▲                                             │ a fault here: told to the agents      │
      │                                             │ a fault elsewhere: interrupted        │
      └── the next world ◀── HealthCheck ◀── Finalize ◀── groups are left ◀── Abort ◀───────┘

The agents do the other half: they learn of exceptions, deaths and hangs on any rank, and form the next world. A fault
elsewhere reaches this process as an event; a thread then aborts the groups and interrupts the main thread. So nothing
is polled, no rank is special, and a lost rank is replaced as in any other softrun job.

Calls may be nested. A fault while all ranks are in the inner call restarts the inner call. If the members of the world
change, the outermost restarts, since newcomers begin there.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from softrun.runtime import worker
from softrun.runtime.bounds import printed, told
from softrun.runtime.events import Interruption, ProgressLimits, WorkerEvent, WorkerFault, WorkerInfo
from softrun.runtime.groups.abort import abort_all
from softrun.runtime.groups.books import has_group
from softrun.runtime.groups.destroy import destroy_kept
from softrun.runtime.groups.group_registry import end_watch, release_connections
from softrun.runtime.groups.groups import (
    GroupOptions,
    build_group,
    is_lost_connection,
    is_lost_peer,
    leave_groups,
    stale_group,
)
from softrun.runtime.groups.held_groups import let_go
from softrun.runtime.inprocess.attribution import InterruptionRecord, format_interruption_records, records_of
from softrun.runtime.inprocess.calls.call_wrapper import CallWrapper
from softrun.runtime.inprocess.calls.light_agent import Meeting, agent_for_a_call
from softrun.runtime.inprocess.calls.seating import Assignment, AssignmentError, Place, Seated, take_seat
from softrun.runtime.inprocess.calls.session import PATIENCE_S, Session
from softrun.runtime.inprocess.calls.world_store import WorldStore
from softrun.runtime.inprocess.exception import BarrierTimeout, RestartAbort
from softrun.runtime.inprocess.rank_assignment import RankDiscarded
from softrun.runtime.inprocess.state import FrozenState, Mode, State
from softrun.runtime.interrupt import RestartRequest
from softrun.runtime.worker import (
    abandon_call,
    begin_call,
    end_call,
    free_trainer_by,
    leave_call,
    refresh_progress,
    tell_fault,
    wait_for_world,
    watch,
)
from softrun.runtime.worlds import World

MEMBERS_WAIT = timedelta(minutes=10)  # for other members, if none of the present ones can be active
TEXT_CHARACTERS = 4000  # of a traceback that is sent to every rank

Callback = Callable[[State], Any]

_log = logging.getLogger("softrun.runtime.inprocess")


@dataclass(frozen=True)
class Options:
    """A Wrapper's arguments, checked."""

    initialize: Callback | None
    abort: Callback | None
    finalize: Callback | None
    health_check: Callback | None
    restart_health_check: Callback | None
    rank_assignment: Assignment | None
    completion: Callback | None
    terminate: Callback | None
    limits: ProgressLimits
    meeting: Meeting
    completion_timeout: timedelta
    last_call_wait_s: float


class Call:
    """One call of a wrapped function, over all its restarts."""

    def __init__(
        self,
        options: Options,
        function: Callable[..., Any],
        wanted: dict[str, type],
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        self.options = options
        self.function = function
        self.wanted = wanted
        self.args = args
        self.named = named
        self.iteration = 0
        self.state: State | None = None
        self.session: Session
        self.depth = 0
        self.interruptions: tuple[InterruptionRecord, ...] = ()
        self._aborted = False  # in this iteration
        self._has_met = False  # all ranks have come to it
        self._name = ""  # the name under which the ranks meet for this call
        self._world_store: WorldStore
        self._place: Place | None = None
        self._initial: tuple[int, int] | None = None
        self._error: BaseException | None = None  # what ended the last iteration
        self._blocks_without_limits = 0

    def run(self) -> Any:
        """Call the function, again after each restart, until all ranks have completed it; returns its value."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("Wrapper: called in a thread; call the wrapped function in the main thread")
        if Session.current is not None:
            return self._run_inside(Session.current)
        if has_group():
            raise RuntimeError(
                "Wrapper: there is a process group already, which no restart could leave; "
                "build it in the wrapped function"
            )
        with agent_for_a_call(self.options.meeting) as expected:
            return self._run_outermost(expected)

    def _run_outermost(self, expected: int | None) -> Any:
        if expected is not None:
            worker.close()  # it may have read its launcher's one world
        may_close = not worker.is_open()
        through = False
        begin_call()
        session = Session(wait_for_world(-1))
        stop = free_trainer_by(session.observe)
        Session.current = session
        try:
            came = session.event.worker_info.world_size
            if expected is not None and came < expected:
                raise BarrierTimeout(f"Wrapper: {came} of {expected} ranks have come in time; start all of them")
            with session.interrupt:
                self._watch(session)
                result = self._iterate(session)
                self._complete()
                end_call()  # not if it leaves by an exception, even SystemExit: its peers miss it
                through = True
                return result
        finally:
            Session.current = None
            stop()
            watch(ProgressLimits())
            session.join()
            release_connections()
            end_watch()
            destroy_kept()
            let_go()
            # After an exception its agent goes on watching: a process that then does not end keeps its peers waiting.
            if may_close and (through or expected is not None):
                worker.close()

    @contextmanager
    def without_limits(self) -> Iterator[None]:
        """No limit applies in the block; the outermost such block brings them back."""
        self._blocks_without_limits += 1
        watch(ProgressLimits())
        try:
            yield
        finally:
            self._blocks_without_limits -= 1
            if not self._blocks_without_limits:
                refresh_progress()
                watch(self.options.limits)

    def _watch(self, session: Session) -> None:
        """Let this call's limits apply from now on."""
        watch(self.options.limits)
        session.interrupt.patience_s = self.options.limits.soft or PATIENCE_S

    def _run_inside(self, session: Session) -> Any:
        outer, begun_with = session.calls[-1], session.event.sequence
        self._watch(session)
        try:
            result = self._iterate(session)
            self._complete()
            begun_with = session.event.sequence  # the outer call goes on in the world that this call has reached
        finally:
            outer._watch(session)
            outer.set_ranks()
            session.interrupt.resume(begun_with, session.abort)
        return result

    def _iterate(self, session: Session) -> Any:
        self.session = session
        self._world_store = WorldStore(session.event.worker_info)
        self.depth = session.begin(self)
        try:
            while True:
                try:
                    return self._once()
                except RestartRequest as request:
                    self._error = request
                except Exception as error:
                    self._error = self._fault(error)
                self._clean_up()
                self.iteration += self._has_met
                event = session.next_event()
                if self.depth > 1 and (event.fault is None or event.fault.depth < self.depth):
                    raise RestartRequest(f"world {event.round} begins in an outer wrapper")
                rank = event.worker_info.rank
                self.interruptions = records_of(event)
                if event.fault is not None:
                    _log.warning("worker %d restarts after a %s", rank, printed(event.fault.text))
                elif self.interruptions:
                    _log.warning("worker %d restarts: %s", rank, format_interruption_records(self.interruptions))
                elif event.change_event is None and isinstance(self._error, RestartRequest) and self._error.__cause__:
                    # All peers are there: no peer was lost.
                    self._error = self._error.__cause__
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
            self._world_store.close()

    def _once(self) -> Any:
        event = self.session.next_event() if self.depth == 1 else self.session.event
        self._name = self.session.enter(event, self.depth)
        self._world_store = WorldStore(event.worker_info)
        self._aborted = self._has_met = False
        return self.session.interrupt.run(functools.partial(self._attempt, event), event.sequence)

    def _attempt(self, event: WorkerEvent) -> Any:
        """One iteration, which may be interrupted anywhere."""
        info = self._place_among_callers(event.worker_info)
        self.iteration, self._has_met = self._meet(info.world_size), True
        world = self._take_place(event, info)
        self._call_back(self.options.initialize)
        try:
            self._call_back(self.options.health_check)
        except Exception as error:
            raise _EndsError(error) from None
        self._error = None
        state = self.state = replace(self.known_state, fn_exception=None)
        if not state.is_active:
            return self._wait_in_reserve(state)
        result = self.function(*self.args, **self.named, **self._given(world))
        if self.session.changed:
            raise RestartRequest(f"world {event.round} ended when the function returned")
        self._world_store = WorldStore(self.session.event.worker_info)
        self._world_store.barrier(f"{self._name}/end", state.active_world_size or 0, self.options.completion_timeout)
        return result

    def _meet(self, size: int) -> int:
        """Wait for the others; the job's iteration, which newcomers cannot know."""
        try:
            timeout = self.options.meeting.barrier_timeout
            return self._world_store.barrier(f"{self._name}/begin", size, timeout, self.iteration)
        except TimeoutError as error:
            raise _EndsError(BarrierTimeout(f"Wrapper: barrier_timeout: {error}")) from None

    def _complete(self) -> None:
        """All ranks are through: nothing is done again, whatever the callback does."""
        try:
            self._call_back(self.options.completion)
        except Exception:
            _log.exception("completion failed; the call has completed all the same")

    def _wait_in_reserve(self, state: State) -> None:
        """Wait until the active ranks have completed the call. If there are none, only another world can have some."""
        try:
            self._world_store.await_barrier(f"{self._name}/end", None if state.active_world_size else MEMBERS_WAIT)
        except TimeoutError:
            raise _EndsError(
                RuntimeError(
                    f"Wrapper: rank_assignment has left none of {state.world_size} ranks active, and no other joined "
                    f"within {MEMBERS_WAIT.total_seconds():g} s; loosen its condition or divisor, or start more nodes"
                )
            ) from None

    def _place_among_callers(self, info: WorkerInfo) -> WorkerInfo:
        """This rank's place among those that make this call: inside an outer call, that call's active ranks."""
        if self.depth == 1:
            return info
        outer = self.session.calls[self.depth - 2].known_state
        return info.model_copy(update={"rank": outer.active_rank, "world_size": outer.active_world_size})

    def _take_place(self, event: WorkerEvent, info: WorkerInfo) -> World:
        seated = Seated(info.rank, info.world_size, info.rank, info.world_size, info.rank)
        if self.options.rank_assignment is not None:
            state = State(info.rank, info.world_size, iteration=self.iteration, round=event.round)
            try:
                seated = take_seat(
                    self.options.rank_assignment, self._world_store, self._name, info, self._place, state
                )
            except AssignmentError as error:
                raise _EndsError(error) from None  # the same ranks would get the same assignment
            if seated.discarded:
                raise _EndsError(
                    RankDiscarded(f"Wrapper: rank_assignment has discarded rank {info.rank} of world {event.round}")
                )
            self._place = Place(event.round, seated.rank, seated.world_size, seated.initial_rank)
        self._initial = self._initial or (seated.initial_rank, seated.world_size)
        self.state = State(
            rank=seated.rank,
            world_size=seated.world_size,
            active_rank=seated.active_rank,
            active_world_size=seated.active_world_size,
            initial_rank=self._initial[0],
            initial_world_size=self._initial[1],
            iteration=self.iteration,
            mode=Mode.INACTIVE if seated.active_rank is None else Mode.ACTIVE,
            fn_exception=None if isinstance(self._error, RestartRequest) else self._error,
            round=event.round,
        )
        self.set_ranks()
        rank = seated.rank if seated.active_rank is None else seated.active_rank
        info = info.model_copy(update={"rank": rank, "world_size": seated.active_world_size})
        return _WrappedWorld(event.model_copy(update={"worker_info": info}))

    def set_ranks(self) -> None:
        """Set RANK and WORLD_SIZE for this call's function."""
        if self.state is not None:
            state = self.state
            rank = state.rank if state.active_rank is None else state.active_rank
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(state.active_world_size))

    @property
    def has_reserves(self) -> bool:
        """Whether some ranks are not active and wait in reserve."""
        return self.state is not None and (self.state.active_world_size or 0) < self.state.world_size

    def _given(self, world: World) -> dict[str, Any]:
        frozen = self.known_state.freeze()
        values: dict[type, Any] = {CallWrapper: CallWrapper(self), State: frozen, FrozenState: frozen, World: world}
        return {name: values[kind] for name, kind in self.wanted.items()}

    def _fault(self, error: Exception) -> BaseException:
        """Report an exception as this rank's fault, unless a lost peer has caused it. Returns what has ended it."""
        stale = None if self.session.changed else stale_group(error)
        if stale is not None:
            cause, error = error, RuntimeError(stale)
            error.__cause__ = cause
        info, round_ = self.session.event.worker_info, self.session.event.round
        if (stale is None and is_lost_peer(error)) or (self.session.changed and is_lost_connection(error)):
            _log.info("worker %d leaves world %d, since a peer is lost: %r", info.rank, round_, error)
            # It is chance whether this error or the interruption comes first.
            request = RestartRequest(f"a peer was lost in world {round_}")
            request.__cause__ = error
            return request
        text = "".join(traceback.format_exception(error))
        tell_fault(
            WorkerFault(
                round=round_,
                text=f"fault of rank {info.rank} of world {round_}: {told(text, TEXT_CHARACTERS)}",
                causes=((info.rank, Interruption.EXCEPTION),),
                depth=self.session.shared_depth,
                last_call_wait=self.options.last_call_wait_s,
            )
        )
        _log.error("fault in worker %d, world %d, iteration %d\n%s", info.rank, round_, self.iteration, text)
        return error

    def _clean_up(self) -> None:
        self.session.interrupt.abort(self.abort)
        # Frames hold the model and its memory. The model must go before its groups: torch may hang if a
        # DistributedDataParallel is the last to hold a gloo group.
        _clear_frames(self._error)
        leave_groups(in_trouble=True)
        if self.state is not None:
            error = None if isinstance(self._error, RestartRequest) else self._error
            self.state = replace(self.state, fn_exception=error)
            self._call_back(self.options.finalize)
            self._call_back(self.options.restart_health_check)

    def _terminate(self, error: BaseException) -> None:
        if isinstance(error, (RestartAbort, RankDiscarded)) and self.depth == 1:
            leave_call()
        elif self.depth == 1:
            abandon_call(unmet=isinstance(error, BarrierTimeout))
        if self.state is not None:
            self.state = replace(self.state, fn_exception=error)
            try:
                self._call_back(self.options.terminate)
            except Exception:
                _log.exception("terminate failed; what ended the wrapper is raised")

    def _call_back(self, callback: Callback | None) -> None:
        if callback is not None:
            callback(self.known_state.freeze())

    @property
    def known_state(self) -> State:
        """This rank's state, which there is from the first callback on."""
        if self.state is None:
            raise AssertionError("a callback before there is a state")
        return self.state

    def abort(self) -> None:
        """Abort, once in an iteration, in a thread; mostly while the function still runs."""
        if self.state is not None and not self._aborted:
            self._aborted = True
            abort_all(self.state.freeze(), self.options.abort)


class _EndsError(BaseException):
    """Carries an Exception that ends the wrapper instead of restarting it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _WrappedWorld(World):
    """The world of one iteration in a wrapper: its end ends the function."""

    @contextmanager
    def _in_group(self, options: GroupOptions) -> Iterator[None]:
        try:
            build_group(self.info, options, self.local_rank)
            yield
        except BaseException:
            leave_groups(in_trouble=True)
            raise
        leave_groups(in_trouble=False)

    def _change(self) -> BaseException:
        """Mostly the function is interrupted before it asks."""
        return RestartRequest(str(super()._change()))


def _clear_frames(error: BaseException | None) -> None:
    """Clear the frames of the error and of the errors that caused it."""
    seen: set[int] = set()
    errors = [error]
    while errors:
        one = errors.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            errors += [one.__cause__, one.__context__]
