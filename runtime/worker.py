"""The worker's API for its world, one state per process: the RFC's two functions, and callbacks for changes.

get_worker_info never returns a world that is known to be broken, so the RFC's own loop works as printed: catch the
error, destroy the group, call get_worker_info, go on. A world counts as broken if this process has used it (it began to
build a group, or took the parameters for one, or is handling an error) and has no default process group now: it has
left. The agent is told, and forms a new world, with the same members if need be.

If an agent gives no sign of life, its worker also waits, since its world may be over
(`softrun.runtime.channel.allowance`).

A child of the worker, forked or not, may ask for the event and for the worker's place. It cannot act for the worker: it
cannot be in a world, and the agent does not hear it.

The agent's own deadlines bound every wait here: an agent that gives up ends its workers. Python's signal handlers run
during a wait in the main thread.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pydantic import PrivateAttr

from softrun.runtime.calls import Call, Reply
from softrun.runtime.channel.allowance import Allowance
from softrun.runtime.channel.channel import ENVIRONMENT_VARIABLE, ChannelError
from softrun.runtime.channel.inbox import LOOK_INTERVAL_S, Inbox, open_inbox
from softrun.runtime.channel.line import Line
from softrun.runtime.channel.progress import Progress
from softrun.runtime.events import (
    RESUME,
    ProgressLimits,
    WorkerEvent,
    WorkerFault,
    WorkerInfo,
    WorkerState,
    WorldChangeEvent,
)
from softrun.runtime.groups.abort import abort_all, track_groups
from softrun.runtime.groups.books import destroying_nothing_does, forget_rank, forget_work, has_group, has_worked
from softrun.runtime.groups.group_registry import (
    begin_world,
    count_groups_from_0,
    end_world,
    has_begun_default_group,
    release_connections,
)
from softrun.runtime.groups.groups import leave_unfinished_groups
from softrun.runtime.groups.leftovers import meshes
from softrun.runtime.groups.leftovers.checkpoint_process import note_checkpoint_processes, retire_checkpoint_process
from softrun.runtime.nccl import ErrorWatch, are_left_alone, leave_errors_alone
from softrun.runtime.preemption import Leave, LeaveCallback, LeaveCallbacks

_log = logging.getLogger("softrun.runtime")

HELD_S = 0.01  # between two looks whether the allowance has been moved


def get_worker_event() -> WorkerEvent:
    """Return the last event that this worker's agent has sent. No event is missed.

    It does not wait, with one exception: if the agent of a worker at work is silent for long enough that the world may
    have changed without it, the call returns when the agent is heard again or the world is over. Without a new event it
    makes no system call.

    Raises ChannelError if this process was started neither by softrun nor by torchrun. Source: the soft-restart RFC,
    "Worker(trainer) API changes".
    """
    return _worker().listen()


def get_worker_info() -> WorkerInfo:
    """Return this worker's place in the newest world; build a process group from it.

    Waits while the worker is paused, and while the world that it returned last is known to be broken. Raises SystemExit
    if the worker was sent a signal to end, which its handler has only noted: no world follows. RANK, WORLD_SIZE,
    MASTER_ADDR and the like are set again for each world, so `init_process_group()` with `env://` works as well. In a
    child of the worker it returns the worker's place, once the worker is not paused.

    Raises ChannelError if this process was started neither by softrun nor by torchrun. Source: the soft-restart RFC,
    "Worker(trainer) API changes".
    """
    return _worker().hand_out()


def on_world_change(callback: Callable[[WorkerEvent], None]) -> Callable[[], None]:
    """Call `callback(event)` for each later event, in order. Returns a function that ends this.

    The callback runs in a thread of softrun's, while the main thread may be in a collective. Its exceptions are logged,
    and the next event is delivered as usual.
    """
    return _worker().inbox.subscribe(callback)


def on_leave(callback: LeaveCallback, *, alone: bool = False) -> Callable[[], None]:
    """Call `callback(leave)` when the whole job is told to end, and end this worker then so that it can be resumed.

    Register it before you ask for the first world. If a node gets a signal (`--signals_to_handle`) or the job its
    `--time_limit`, and too few nodes would be left, all ranks stop after the same step, and each calls its callbacks in
    the main thread, with the world's group still there: save there, by collectives too. `leave.seconds_left` tells how
    long that may take, and `leave.reason` why. Then the worker exits with code 75, and so does the launcher: start the
    job again, and load what was saved. It also happens shortly before `join_timeout` ends a job that has too few nodes.

    A step is what `World.check(step)` and `reached_preemption_sync_point(step)` count. Without them the step under way
    is interrupted, and the callbacks are called in a new world: in `World.process_group` once a State was synced there
    (`worlds(state=…)`), otherwise in the first `World.check`, or in `get_worker_event`. If a rank is lost meanwhile,
    the others are interrupted and call theirs again.

    `alone`: call it, too, if only this node leaves and the others go on without it (`leave.alone`), if all count their
    steps. Call no collectives then; what the callback does costs the others nothing.

    Returns a function that ends this. An exception of a callback is the trainer's, and fails the worker.
    """
    return _worker().on_leave(callback, alone)


def reached_preemption_sync_point(step: int) -> bool:
    """Return whether all ranks are to stop after this step, for good: save then, and exit with `softrun.RESUME`.

    Call it on all ranks after each step, with the number of completed steps. All ranks return True after the same step
    (as JAX's function of this name), so they can save by collectives; `--shutdown_timeout` says how long that may take.
    Without news it makes no system call. It may wait for some milliseconds while the agents agree on the step.
    """
    return _worker().reached_preemption_sync_point(step)


def leaving(step: int | None) -> Leave | None:
    """Return what all ranks were told, if they leave for good after this step; None: they do not."""
    return _worker().asks_whether_leaving(step)


def leave_here(step: int | None) -> None:
    """If all ranks leave for good after this step: call the trainer's callbacks, and raise SystemExit if it has any."""
    _worker().leave_here(step)


def has_left() -> bool:
    """Whether this worker has left its world for good, as it was told to."""
    return _worker().has_left()


def wait_for_world(after_round: int) -> WorkerEvent:
    """Wait for a world after the given one, which this worker has left; returns the event that names it.

    Raises ChannelError in a process that is not the worker, such as a child of it.
    """
    return _worker().join(after_round)


def free_trainer_by(free: Callable[[WorkerEvent], None]) -> Callable[[], None]:
    """Call `free(event)` instead of an abort to get the trainer out of a world that is over; returns what ends that.

    softrun calls it in a thread of its own; it must not wait.
    """
    return _worker().free_trainer_by(free)


def idle() -> None:
    """This worker takes no step in its world: nobody needs to wait for one before the next world."""
    _worker().idle()


def last_event() -> WorkerEvent:
    """Return the newest event; for softrun itself, see `get_worker_event`."""
    return _worker().last()


def current_round() -> int:
    """Return the number of the world that the trainer is in; news of the next one may be there already."""
    return _worker().round


def ping() -> None:
    """Show that training makes progress. After the first call in a world, calls must follow within the timeouts."""
    _worker().ping()


def completed(step: int) -> None:
    """Show how many steps the trainer has completed; all ranks count the same steps."""
    _worker().completed(step)


def hold(after: int) -> None:
    """Wait between two steps if told to. Call it in a loop: it returns when there may be an event after this one."""
    _worker().hold(after)


def watch(limits: ProgressLimits) -> None:
    """Have the agent act if this worker makes no progress within these limits."""
    _worker().watch(limits)


def writing() -> AbstractContextManager[None]:
    """A block in which what the process writes counts as progress, for an hour at most."""
    return _worker().writing()


def refresh_progress() -> None:
    """Count limits from now: what the trainer was busy with is exempt from them."""
    _worker().refresh_progress()


def withhold_progress(withheld: bool) -> None:
    """While withheld, only pings count as progress, not byte code that the main thread executes."""
    _worker().withhold_progress(withheld)


def begin_call() -> None:
    """From the next world on, peers wait for this worker at the end of a call, even if it exits with 0."""
    _worker().in_call = True


def is_in_call() -> bool:
    """Whether the trainer is in a call that is interrupted, and begun again, when its world ends."""
    return _worker().in_call


def end_call() -> None:
    """All ranks have come to the end of the call together."""
    _worker().end_call()


def leave_call() -> None:
    """The peers no longer wait for this worker."""
    _worker().leave_call()


def abandon_call(*, unmet: bool = False) -> None:
    """This rank takes no part in the call any more, whatever its process does until its end: the others go on.

    `unmet`: they have not come in time, so the work is not done by whoever still comes.
    """
    _worker().abandon_call(unmet)


def be_through() -> None:
    """The work is done: whatever this process does now is its own business."""
    _worker().be_through()


def ask(call: Call) -> Reply:
    """Make a call of live_workers or live_barrier, and wait for the agent's reply. Raises ChannelError if it is gone.

    Raises RuntimeError in a process that is not the worker, or that has no agent.
    """
    return _worker().ask(call)


def tell_fault(fault: WorkerFault) -> None:
    """Have the agents end this world and form a new one of the same members."""
    _worker().tell_fault(fault)


class ToldToEnd(SystemExit):
    """There is no next world for this worker: its agent ends it by a signal, which the trainer handles."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)  # as a shell says it


class _HandedOut(WorkerInfo):
    """Looks, compares and pickles like the WorkerInfo it was made from, and notes whether it was used."""

    _used: bool = PrivateAttr(default=False)

    def get_pg_parameters(self) -> dict[str, Any]:
        self._used = True
        _note_groups()  # torch may have been imported since this was handed out
        return super().get_pg_parameters()

    @property
    def used(self) -> bool:
        return self._used

    def plain(self) -> WorkerInfo:
        return WorkerInfo(**dict(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkerInfo) and dict(self) == dict(other)

    def __hash__(self) -> int:
        return hash(self.plain())

    def __reduce__(self) -> tuple[Callable[[Any], WorkerInfo], tuple[dict[str, Any]]]:
        return WorkerInfo.model_validate, (dict(self),)

    def __repr_name__(self) -> str:
        return WorkerInfo.__name__


class _Worker:
    def __init__(self, inbox: Inbox, round_: int = 0) -> None:
        """`round_`: the world that this process is in already."""
        self.inbox = inbox
        self._handed: _HandedOut | None = None
        self._round = round_
        self._entered = 0  # the sequence of the event that named the trainer's world
        self._grouped = False  # a default process group was seen in this round
        self.in_call = False
        self._watches = False
        self._free: Callable[[WorkerEvent], None] = _abort_what_will_not_end
        self._entering = threading.Lock()
        self._status = inbox.told()
        self._telling = threading.RLock()  # reentrant: a signal handler of the user's may ask for a world
        self._progress: Progress | None = None
        self._page = inbox.page()
        self._allowance = Allowance(self._page)
        self._leave_callbacks = LeaveCallbacks()
        self._left_alone = 0  # the world that this node has left while the others went on
        self._saves = False  # in the trainer's callbacks
        self._reads_leaving = False  # the trainer asks by itself whether all leave
        self._heeds = False  # told to leave for good, the trainer stops after an agreed step
        self._completed: int | None = None  # the last step that the trainer has counted in this world
        self._line: Line | None = None
        self._asks = False  # the trainer waits for a reply
        self._lapse: WorkerEvent | None = None  # what this worker told itself, as its agent did not
        self._errors: ErrorWatch | None = None

    @property
    def round(self) -> int:
        return self._round

    def last(self) -> WorkerEvent:
        if not self._grouped:
            self._grouped = has_group()
        if self._allowance.holds():
            self._wait_for_the_agent()
        event = self.inbox.last()
        if self._lapse is not None and self._lapse.sequence > event.sequence:
            return self._lapse
        return event

    def listen(self) -> WorkerEvent:
        """The last event, for a trainer that asks for nothing else: it has obeyed what it has seen."""
        event = self.last()
        if event.preemption is not None and has_group() and threading.current_thread() is threading.main_thread():
            self.leave_here(self._completed)
        if self._round == 0 and self._status.applied < event.sequence and self.inbox.claim():
            self._tell(ready=True, applied=event.sequence)
        if event is self._lapse and self._status.broken_round != event.round:
            self._tell(broken_round=event.round)  # its agent may not have missed it
        return event

    def join(self, after_round: int) -> WorkerEvent:
        if not self.inbox.claim():
            raise ChannelError(
                f"this process ({os.getpid()}) is not the worker, process {self.inbox.worker()} is: ask for worlds "
                f"there, or start this one without {ENVIRONMENT_VARIABLE} in its environment"
            )
        return self.world_after(after_round)

    def hand_out(self) -> WorkerInfo:
        if not self.inbox.claim():
            return self._place_of_the_worker()
        broken = self._is_broken()
        event = self.world_after(self._round if broken else self._round - 1)
        if self._handed is None or self._handed != event.worker_info:
            self._handed = _HandedOut(**dict(event.worker_info))
        return self._handed

    def world_after(self, round_: int) -> WorkerEvent:
        self._show_progress()
        self._show_work()
        if not self._watches:
            self._watches = True
            self.inbox.subscribe(self._end_world)
        while True:
            event = self.inbox.last()
            healthy = event.worker_state is WorkerState.HEALTHY
            usable = healthy and event.round > round_
            if event.signum and not usable and signal.getsignal(event.signum) is not signal.SIG_DFL:
                raise ToldToEnd(event.signum)  # the default would end it right here
            # A world can be broken for one worker while all its members are alive: nobody but this one knows.
            broken = event.round if healthy and not usable else None
            if not event.interrupts:
                release_connections()  # peers that are not aborted notice so that this one ends no step with them
            called = event.round if self.in_call and usable else 0
            if event.preemption is not None and event.preemption.alone and self._left_alone != event.round:
                self._left_alone = event.round
                self._leave_callbacks.call(Leave(event))
            here = {"applied": event.sequence, "broken_round": broken, "called": called, "heeds": self._heeds}
            if event.round != self._round or not usable:
                self._begin_world()  # before the agent hears where it is: the last world's steps do not count
            stays = dict.fromkeys(("ends", "through", "final", "gone", "unmet", "left", "saved"), False)
            self._tell(ready=True, **stays, **here)
            if not usable:
                self.inbox.wait(event.sequence)
            elif self._allowance.holds():  # its agent gives it time once it knows that this worker has left its world
                self.inbox.wait(event.sequence, HELD_S)
            elif self._enter(event):
                return event

    def _place_of_the_worker(self) -> WorkerInfo:
        while True:
            event = self.inbox.last()
            if event.worker_state is WorkerState.HEALTHY:
                return event.worker_info
            self.inbox.wait(event.sequence)

    def _wait_for_the_agent(self) -> None:
        """Nobody knows whether this world still is: complete no step of it. Ends with a sign of the agent's."""
        while self._allowance.holds() and self._works(event := self.inbox.last()):
            self.hold(event.sequence, HELD_S)

    def _works(self, event: WorkerEvent) -> bool:
        """Whether the trainer is in a world, and was not told to leave it at once."""
        healthy = event.worker_state is WorkerState.HEALTHY
        return (healthy and event.round == self._round) or self._comes_later(event)

    def _each_beat(self) -> None:
        """In the thread that shows the progress."""
        self.inbox.look()
        self._show_work()
        if self._allowance.is_over() and self._lapse is None and self._round and not self._status.gone:
            self._leave_unasked()

    def _leave_unasked(self) -> None:
        """The others may have gone on without this node, and its agent cannot say so."""
        event = self.inbox.last()
        with self._entering:
            if event.sequence >= self._entered and self._works(event):
                changes = {"worker_state": WorkerState.PAUSED, "change_event": WorldChangeEvent.SCALE_DOWN}
                bare = {"fault": None, "stop_after": None, "leave_after": None, "sequence": event.sequence + 1}
                self._lapse = event.model_copy(update={**changes, **bare})
                _log.warning("nothing heard from this worker's agent: leaving world %d, which may be over", event.round)
                end_world()
                self._free(self._lapse)

    def _begin_world(self) -> None:
        """Forget the progress in the last world."""
        self._completed = None
        if self._progress is not None:
            self._progress.begin_world()

    def free_trainer_by(self, free: Callable[[WorkerEvent], None]) -> Callable[[], None]:
        before, self._free = self._free, free

        def restore() -> None:
            self._free = before

        return restore

    def ping(self) -> None:
        if self._progress is not None:
            self._progress.ping()

    def hold(self, after: int, at_most_s: float = LOOK_INTERVAL_S) -> None:
        if self._progress is not None:
            self._progress.hold()
        self.inbox.wait(after, at_most_s)

    def writing(self) -> AbstractContextManager[None]:
        return nullcontext() if self._progress is None else self._progress.writing()

    def refresh_progress(self) -> None:
        if self._progress is not None:
            self._progress.hold()

    def withhold_progress(self, withheld: bool) -> None:
        if self._progress is not None:
            self._progress.withhold(withheld)

    def close(self) -> int:
        """Returns the world that it was in."""
        if self._progress is not None:
            atexit.unregister(self._end)
            self._progress.close()
        if self._line is not None:
            self._line.close()
        if self._errors is not None:
            self._errors.end()
        self.inbox.close()
        return self._round

    def end_call(self) -> None:
        self.in_call = False
        self._tell(called=0, worked=self._round, ends=True, through=True)

    def leave_call(self) -> None:
        self.in_call = False
        self._tell(called=0, ends=True, final=True)

    def abandon_call(self, unmet: bool) -> None:
        self.in_call = False
        self._tell(gone=True, unmet=unmet, ends=True)

    def be_through(self) -> None:
        if self.inbox.last().signum:
            return  # a flag that its handler has set may have ended the loop
        self._show_work()
        self._tell(ends=True, through=not self._status.left)

    # --- leaving for good

    def on_leave(self, callback: LeaveCallback, alone: bool) -> Callable[[], None]:
        remove = self._leave_callbacks.add(callback, alone)
        self._heed(True)

        def end() -> None:
            remove()
            self._heed(self._reads_leaving or bool(self._leave_callbacks))

        return end

    def _heed(self, heeds: bool) -> None:
        """The agent hears of it with the next world that this worker asks for: a status means that it has asked."""
        if self._heeds is not heeds:
            self._heeds = heeds
            if self._round:
                self._tell(heeds=heeds)

    def asks_whether_leaving(self, step: int | None) -> Leave | None:
        self._reads_leaving = True
        self._heed(True)
        return self._leaving(step)

    def _leaving(self, step: int | None) -> Leave | None:
        event = self.last()
        told = event.preemption
        if told is None or event.worker_state is not WorkerState.HEALTHY or event.round != self._round:
            return None
        if told.after and (step is None or step < told.after):
            return None
        if not self._status.left:
            self._show_work()
            self._tell(left=True, ends=True)
        return Leave(event)

    def leave_here(self, step: int | None) -> None:
        if self._saves or not self._leave_callbacks:
            return
        leave = self._leaving(step)
        if leave is None:
            return
        self._saves = True
        try:
            self._leave_callbacks.call(leave)
        finally:
            self._saves = False
        raise SystemExit(RESUME)

    def has_left(self) -> bool:
        return self._status.left

    def reached_preemption_sync_point(self, step: int) -> bool:
        self.completed(step)
        while self.asks_whether_leaving(step) is None:
            event = self.last()
            if event.stop_after is None or step < event.stop_after or not self._works(event):
                return False
            self.hold(event.sequence)
        return True

    def completed(self, step: int) -> None:
        self._completed = step
        if self._progress is not None and step >= 0:
            self._progress.completed(step)
            if self._status.counts != self._round:
                self._tell(counts=self._round)

    def idle(self) -> None:
        if self._progress is not None and self._status.idle != self._round:
            self._progress.idle()
            self._tell(idle=self._round)

    def watch(self, limits: ProgressLimits) -> None:
        if self._progress is not None:
            self._tell(limits=limits)

    def tell_fault(self, fault: WorkerFault) -> None:
        self._tell(fault=fault)

    def ask(self, call: Call) -> Reply:
        if self._line is None:
            if not self.inbox.claim():
                raise RuntimeError(
                    f"this process ({os.getpid()}) is not the worker, process {self.inbox.worker()} is: call "
                    "live_workers there"
                )
            self._line = self.inbox.line()
        self._asks = True
        try:
            self._say_that_it_is_out(self.inbox.last())
            return self._line.ask(call)
        finally:
            self._asks = False

    def _say_that_it_is_out(self, event: WorkerEvent) -> None:
        """While the trainer waits for a reply it does nothing in a world that it was told to leave."""
        told = event.worker_state is WorkerState.PAUSED and event.sequence > self._status.applied
        if self._asks and told and not self._comes_later(event):
            self._tell(ready=True, applied=event.sequence)

    def _tell(self, **changes: Any) -> None:
        with self._telling:
            self._status = self._status.model_copy(update=changes)
            self.inbox.tell(self._status)

    def _show_work(self) -> None:
        """Report once in each world that the ranks work together in it."""
        round_ = self._round
        if self._status.worked != round_ and (
            has_worked() or (self._progress is not None and self._progress.has_worked)
        ):
            self._tell(worked=round_)

    def _show_progress(self) -> None:
        """Show progress from now on. Only the main thread can: it trains, and signals reach it."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        if self._progress is None and self._page is not None and in_main_thread:
            self._progress = Progress(self._page, self._each_beat)
            atexit.register(self._end)
            self._status = self._status.model_copy(update={"limits": ProgressLimits()})

    def _end(self) -> None:
        """Report that this process is ending, which may take a while and is not a hang."""
        if self._progress is not None and self._progress.is_own:
            self._show_work()
            # The interpreter sets it for an exception that nobody has caught, and not for SystemExit.
            saved = self._status.left and not hasattr(sys, "last_value")
            self._tell(ends=True, saved=saved)

    def _enter(self, event: WorkerEvent) -> bool:
        """Returns False if there is a later event: it may have ended this world before the trainer was in it."""
        with self._entering:
            if self.inbox.last().sequence > event.sequence:
                return False
            self._entered = event.sequence
            self._lapse = None
            begin_world()
        if event.round != self._round:
            self._round, self._grouped, self._handed = event.round, False, None
            leave_unfinished_groups()
            retire_checkpoint_process()
            forget_rank()
            forget_work()
            count_groups_from_0()
            meshes.begin_world(event.round)
            _note_groups()
            if self._errors is None and are_left_alone():
                self._errors = ErrorWatch(lambda: self.inbox.last().sequence)
        if ENVIRONMENT_VARIABLE in os.environ:
            os.environ.update(event.environment())
        return True

    def _end_world(self, event: WorkerEvent) -> None:
        """The world is over. Called in the watcher's thread, while the trainer may be anywhere in that world."""
        with self._entering:
            if event.sequence > self._entered and not self._comes_later(event):
                end_world()
                self._free(event)
                self._say_that_it_is_out(event)

    def _comes_later(self, event: WorkerEvent) -> bool:
        """Whether the world ends between two steps, later."""
        return event.leave_after is not None

    def _is_broken(self) -> bool:
        self._grouped = self._grouped or has_group()
        if self._round == 0 or has_group():
            return False
        used = self._grouped or has_begun_default_group() or (self._handed is not None and self._handed.used)
        return used or ("torch.distributed" in sys.modules and sys.exc_info()[0] is not None)


def _note_groups() -> None:
    """Track the groups that the trainer builds, so that they can be aborted, and destroyed if they were never built."""
    leave_errors_alone()
    track_groups()
    meshes.mark_meshes()
    note_checkpoint_processes()
    destroying_nothing_does(leave_unfinished_groups)


def _abort_what_will_not_end(event: WorkerEvent) -> None:
    """Abort the groups: the main thread may wait in a collective that a peer has left, or will never enter."""
    if event.interrupts:
        abort_all()


_lock = threading.RLock()
_current: _Worker | None = None
_closed: tuple[str | None, int] = (None, 0)
"""The channel that was read last, and the world of then: in the same world, groups are numbered on."""


def _worker() -> _Worker:
    global _current
    worker = _current
    if worker is not None:
        return worker
    with _lock:
        if _current is None:
            channel, round_ = _closed
            _current = _Worker(open_inbox(), round_ if channel == os.environ.get(ENVIRONMENT_VARIABLE) else 0)
        return _current


def is_open() -> bool:
    """Whether this process reads its channel."""
    return _current is not None


def close() -> None:
    """Read the channel no more, until somebody asks again; call it in the main thread. No thread of it stays."""
    global _current, _closed
    with _lock:
        worker, _current = _current, None
    if worker is not None:
        _closed = (os.environ.get(ENVIRONMENT_VARIABLE), worker.close())


def _begin_in_child() -> None:
    """A forked child, such as a DataLoader's, has its parent's locks but none of its threads, so it starts over."""
    global _lock, _current, _closed
    _lock = threading.RLock()
    _current = None
    _closed = (None, 0)


os.register_at_fork(after_in_child=_begin_in_child)
