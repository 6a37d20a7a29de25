"""The short way to train through changes of the world.

    for world in softrun.worlds():          # one pass per world; waits while paused; ends when a pass completes
        with world.process_group():         # builds the group; leaves it when the world changes
            ...                             # every rank takes model, optimizer and step from rank 0, a survivor
            while step < total:
                train_step()
                step += 1
                world.check(step)           # between two steps: the end of this pass if the world has changed

A pass ends, and the loop goes on with the next world, if the world has changed or its group broke because peers were
lost. Any other exception is the trainer's own: it is raised at once and nothing is tried again. If a group has broken
though nobody was lost, the same members try once more; if the same comes again, at the same step, it is raised as well.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn, Protocol

from softrun.runtime.events import WorkerEvent, WorkerInfo, WorkerState
from softrun.runtime.groups.group_registry import release_connections
from softrun.runtime.groups.groups import GroupOptions, build_group, is_lost_connection, leave_groups, stale_group
from softrun.runtime.preemption import Leave
from softrun.runtime.recurrence import Place, Recurrence, summary
from softrun.runtime.share import Share, share_of
from softrun.runtime.steplog import is_wanted, log_step
from softrun.runtime.worker import (
    ToldToEnd,
    be_through,
    completed,
    has_left,
    hold,
    idle,
    last_event,
    leave_here,
    leaving,
    ping,
    wait_for_world,
)

if TYPE_CHECKING:
    import torch

PATIENCE = timedelta(minutes=10)

_log = logging.getLogger("softrun.runtime")


class WorldChanged(Exception):  # noqa: N818 - it is news, not an error
    """This world is over. Do not catch it: `World.process_group` does, and `worlds` continues with the next world."""


class Synced(Protocol):
    """What all ranks of a world have in common, such as a State."""

    def sync(self, world: World) -> object:
        """Give all ranks the same. Raises what torch raises for a lost peer."""


class World:
    """One world as this worker sees it: its place there, and whether the world still stands."""

    def __init__(self, event: WorkerEvent, state: Synced | None = None, recurrence: Recurrence | None = None) -> None:
        self._event = event
        self._state = state
        self._recurrence = recurrence if recurrence is not None else Recurrence()
        self._fault: Exception | None = None  # what has ended it on this rank, if nobody had told it to leave
        self._checks = 0
        self._grouped = False
        self._ended = False
        self._completed: int | None = None  # the last step
        self._is_logged = is_wanted()
        self._quiet = self._event if event.preemption is None else None  # the event that asks for nothing

    @property
    def info(self) -> WorkerInfo:
        """This worker's place in this world."""
        return self._event.worker_info

    @property
    def round(self) -> int:
        """The number of this world."""
        return self._event.round

    @property
    def rank(self) -> int:
        """This worker's rank among all workers of this world."""
        return self.info.rank

    @property
    def world_size(self) -> int:
        """How many workers this world has."""
        return self.info.world_size

    @property
    def local_rank(self) -> int:
        """The number of this worker's device: LOCAL_RANK, which is 0 under --virtual_local_rank."""
        return int(os.environ.get("LOCAL_RANK", self.info.local_rank))

    @property
    def changed(self) -> bool:
        """Whether this world is over. Makes no system call unless there is something new."""
        return self._is_over(last_event())

    @property
    def sequence(self) -> int:
        """The sequence of the event that named this world."""
        return self._event.sequence

    def share(self, global_batch: int) -> Share:
        """Return this rank's part of a global batch of that many samples, and what its mean loss counts for.

        So the whole world takes the same batch, however many workers it has: take the samples from `start` to `stop`,
        and multiply the loss by `weight`. Raises ValueError for a batch without samples.
        """
        return share_of(global_batch, self.rank, self.world_size)

    def ping(self) -> None:
        """Show that training makes progress.

        After the first ping in a world, the next must follow within `--soft_timeout` and `--hard_timeout` each time.
        """
        ping()

    def check(self, step: int | None = None) -> None:
        """Raise WorldChanged if this world is over. Call it between two steps.

        `step` is the number of completed steps, the same on all ranks. If you pass it and no rank was lost, no step is
        interrupted: the agents agree on a step, and all ranks leave the world after it. The call may then wait for some
        milliseconds. While nothing changes it makes no system call.
        """
        if step is not None:
            if self._is_logged:
                log_step(self.info, self.round, step)
            completed(step)  # before looking for events: the agent reads it after sending one
            self._completed = step
        self._checks += 1
        while True:
            event = last_event()
            if event is self._quiet:
                return
            if self._is_over(event):
                raise self._change()
            if event.preemption is not None:
                leave_here(self._completed)
            if event.stop_after is None or self._completed is None or self._completed < event.stop_after:
                return
            hold(event.sequence)  # the agents are about to agree on a step

    @property
    def leaving(self) -> Leave | None:
        """What all ranks are told if they leave this job for good after the last step that they counted; else None.

        Read it after each `check(step)`. All ranks see it after the same step: save then, by collectives too, and end
        with `raise SystemExit(softrun.RESUME)`. `softrun.on_leave` does that for you.
        """
        return leaving(self._completed)

    def wait_for_change(self, patience: timedelta = PATIENCE) -> NoReturn:
        """Wait until this world is over, if the trainer cannot use it: if its mesh needs more workers, or other ones.

        Call it on all ranks, inside `process_group`. It raises WorldChanged as soon as the world is over, as `check`
        does, and TimeoutError if that takes longer than `patience`.
        """
        deadline = time.monotonic() + patience.total_seconds()
        idle()
        while time.monotonic() < deadline:
            event = last_event()
            if self._is_over(event) or event.signum:
                raise self._change()
            if event.preemption is not None:
                leave_here(self._completed)
            hold(event.sequence)
        raise TimeoutError(
            f"this trainer cannot use world {self.round}, of size {self.world_size}, and no other world followed "
            f"within {patience.total_seconds():g} s: start what is missing sooner, or wait longer"
        )

    def _change(self) -> BaseException:
        return WorldChanged(f"world {self.round} is over: a new one is being formed")

    def _is_over(self, event: WorkerEvent) -> bool:
        if event.sequence <= self._event.sequence:
            return False
        if event.round == self.round and event.worker_state is WorkerState.HEALTHY:
            return False
        return event.leave_after is None or self._completed is None or self._completed >= event.leave_after

    def process_group(
        self,
        backend: str | None = None,
        timeout: timedelta | None = None,
        device_id: torch.device | int | None = None,
    ) -> AbstractContextManager[None]:
        """Build torch's default process group of this world, and leave it when the `with` block ends.

        `backend`: torch's name; None means nccl if there is CUDA, else gloo. `timeout`: how long a collective may take;
        None means torch's default. `device_id`: the device that the group is bound to, or the number of a CUDA device;
        None means cuda:`local_rank` if the backend is nccl of torch 2.15 or later, which would guess it, and otherwise
        the device of the first tensor.

        Raises ValueError if this torch has no such backend, or this machine no such device.

        If the world changes before the group is built, this object becomes the newer world in place, so read `rank` and
        `world_size` inside the block. The block ends the pass, without an exception, on WorldChanged, on any exception
        once the world has changed, and when peers are lost. It raises every other exception.

        With NCCL an aborted collective does not raise but leaves its buffers as they are. There, call
        `torch.cuda.synchronize()` and `check()` between the backward pass and the optimizer's step as well.
        """
        return self._in_group(GroupOptions(backend, timeout, device_id))

    @contextmanager
    def _in_group(self, options: GroupOptions) -> Iterator[None]:
        self._build(options)
        try:
            yield
        except BaseException as error:
            leave_groups(in_trouble=not _leaves(error))
            stale = None if self.changed else stale_group(error)
            if stale is not None or not self._is_ended_by(error):
                release_connections()
                if stale is not None:
                    raise RuntimeError(stale) from error
                raise
            self._ended = True
        else:
            leave_groups(in_trouble=False)

    @property
    def ended(self) -> bool:
        """Whether a change of the world has cut this pass short, so that another one follows."""
        return self._ended or (self.changed and not self._grouped)

    def _build(self, options: GroupOptions) -> None:
        self._grouped = True
        while True:
            try:
                if self.changed:
                    raise self._change()
                build_group(self.info, options, self.local_rank)
                if self._state is not None:
                    self._state.sync(self)
                    if self._quiet is None:
                        leave_here(self._completed)
                return
            except BaseException as error:
                leave_groups(in_trouble=not _leaves(error))
                if not self._is_ended_by(error):
                    raise
            self.leave()
            self._event = wait_for_world(self.round)
            self._quiet = self._event if self._event.preemption is None else None
            self._recurrence.enters(self._event)
            self._fault = None

    def leave(self) -> None:
        """Note how far this world came, before the next one is asked for."""
        self._recurrence.leaves(self.round, self._fault, Place(self._completed, self._checks))

    def _is_ended_by(self, error: BaseException) -> bool:
        if not isinstance(error, Exception):
            return False  # KeyboardInterrupt, SystemExit
        if self.changed:
            reason = "it changed"
        elif is_lost_connection(error):
            reason = "peers are lost"
            self._fault = error
        else:
            return False
        _log.info("worker %d leaves world %d: %s (%s)", self.rank, self.round, reason, summary(error))
        _log.debug("worker %d left world %d by this", self.rank, self.round, exc_info=error)
        return True


def worlds(state: Synced | None = None) -> Iterator[World]:
    """Yield one World after the other, each as soon as the agents have formed it. Ends when a pass ends by itself.

    `state`: a State, which `World.process_group` syncs as soon as the group is built. If your model is built anew for
    each world's mesh, call `state.sync(world)` yourself.

    It also ends if this worker is sent a signal to end and its handler only notes that: there is no next world, and
    what follows the loop runs. Ask there how far the training got.
    """
    after_round = -1
    recurrence = Recurrence()
    while True:
        try:
            event = wait_for_world(after_round)
        except ToldToEnd:
            if after_round < 0:
                raise  # it was in no world: what follows the loop has nothing to work on
            return
        recurrence.enters(event)
        world = World(event, state, recurrence)
        yield world
        if not world.ended:
            be_through()
            return
        world.leave()
        after_round = world.round


def _leaves(error: BaseException) -> bool:
    """Whether this is how all ranks leave together, when they have saved."""
    return isinstance(error, SystemExit) and has_left()
