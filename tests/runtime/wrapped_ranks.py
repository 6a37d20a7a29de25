"""Ranks of a wrapped function as forked workers, and their agent: it forms a world whenever the test says so."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist
from gloo_ranks import Me, Rank

from fake_agent import an_event, an_info, wait_until
from local_cluster import PATIENCE_S
from softrun.runtime.channel.channel import ENVIRONMENT_VARIABLE, EventWriter
from softrun.runtime.events import WorkerEvent, WorkerFault, WorkerState, WorkerStatus, WorldChangeEvent
from softrun.runtime.inprocess import RankAssignment, RankAssignmentCtx, Seat

MET = "all are here"
SHORT_S = 0.3  # for what must not happen

Body = Callable[[Me], None]


class Worker(Rank):
    """A worker process with its channel."""

    def __init__(self, body: Body, channel: Path) -> None:
        self.writer = EventWriter.create(channel)
        self._log = channel.with_suffix(".log")
        super().__init__(functools.partial(_work, body, channel, self._log), 0, 0, 0)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def status(self) -> WorkerStatus:
        return self.writer.read_status() or WorkerStatus()


class Job:
    """What the agents of a job do for its workers."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._keeper = Rank(_keep_stores, 0, 0, 0)  # a process of its own: a store's threads do not bear a fork
        self._workers: list[Worker] = []
        self.members: list[Worker] = []
        self.round = 0

    def start(self, *bodies: Body) -> list[Worker]:
        """Workers that have yet to be told of a world."""
        workers = [Worker(body, self._root / f"{len(self._workers) + n}") for n, body in enumerate(bodies)]
        self._workers += workers
        return workers

    def begin(self, body: Body, size: int) -> list[Worker]:
        """So many workers in a first world."""
        workers = self.start(*[body] * size)
        self.form(workers)
        return workers

    def form(
        self,
        members: list[Worker],
        change: WorldChangeEvent | None = None,
        fault: WorkerFault | None = None,
        lost: tuple[int, ...] = (),
    ) -> None:
        """A new world of these, in rank order; those of the one before are paused first."""
        for member in self.members:
            self._tell(member, WorkerState.PAUSED, change, fault, lost)
        self.round, self.members = self.round + 1, members
        self._keeper.tell()
        port = self._keeper.says()
        for rank, member in enumerate(members):
            member.info = an_info(rank, len(members), port)
            self._tell(member, WorkerState.HEALTHY, change, fault, lost)

    def lose(self, lost: Worker, *newcomers: Worker) -> None:
        """A world without that worker, which is killed, and with those."""
        lost.end_by_force()
        remaining = [member for member in self.members if member is not lost]
        self.members = remaining
        self.form([*remaining, *newcomers], WorldChangeEvent.SCALE_DOWN)

    def meet(self) -> None:
        """Wait until all members are in `meet`, and let them go on."""
        for member in self.members:
            assert member.says() == MET
        for member in self.members:
            member.tell()

    def told_faults(self, count: int = 1) -> list[WorkerFault]:
        """Wait until so many members have told one in this world."""

        def told() -> list[WorkerFault] | None:
            faults = [member.status.fault for member in self.members]
            new = [fault for fault in faults if fault is not None and fault.round == self.round]
            return new if len(new) >= count else None

        return wait_until(told, f"{count} faults")

    def restart(self, count: int = 1) -> WorkerFault:
        """Wait for so many faults; form a world of the same members after the one that is told of the outermost."""
        fault = min(self.told_faults(count), key=lambda fault: fault.depth)
        self.form(self.members, fault=fault)
        return fault

    def end(self) -> None:
        for worker in self._workers:
            worker.end_by_force()
            worker.writer.remove()
        self._keeper.end_by_force()

    def _tell(
        self,
        member: Worker,
        state: WorkerState,
        change: WorldChangeEvent | None,
        fault: WorkerFault | None = None,
        lost: tuple[int, ...] = (),
    ) -> None:
        event: WorkerEvent = an_event(self.round, state, change, member.info)
        member.writer.write(event.model_copy(update={"fault": fault, "lost": lost}))


@contextmanager
def job(root: Path) -> Iterator[Job]:
    made = Job(root)
    try:
        yield made
    finally:
        made.end()


def meet(me: Me) -> None:
    """So that what befalls one finds all at the same place."""
    me.say(MET)
    me.hear()


def sit() -> None:
    """As in a call that only a signal ends."""
    time.sleep(3600)


def reverse(seats: tuple[Seat, ...]) -> tuple[Seat, ...]:
    """Give the process that came last number 0."""
    return tuple(replace(seat, rank=len(seats) - 1 - seat.initial_rank) for seat in seats)


class Reverse(RankAssignment):
    """The same, as each rank finds its own number."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        ctx.state.rank = ctx.state.world_size - 1 - (ctx.state.initial_rank or 0)
        return ctx


class Record:
    """Callbacks that note that they were called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getitem__(self, name: str) -> Callable[[object], None]:
        return lambda _: self.calls.append(name)


class Stop(BaseException):
    """As RestartAbort is, not an Exception."""


def log_debug(name: str = "softrun") -> None:
    logging.getLogger(name).setLevel(logging.DEBUG)


def _work(body: Body, channel: Path, log: Path, me: Me) -> None:
    with log.open("w", buffering=1) as out:
        os.dup2(out.fileno(), 2)
        sys.stdout = sys.stderr = out
        logging.basicConfig(force=True, format="%(levelname)s %(name)s %(message)s")
        faulthandler.dump_traceback_later(PATIENCE_S * 0.9, file=out)  # should it hang
        os.environ.update(
            {ENVIRONMENT_VARIABLE: str(channel), "LOCAL_RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        )
        body(me)


def _keep_stores(me: Me) -> None:
    stores = []
    while True:
        with contextlib.suppress(AssertionError):  # nothing was asked for a while
            me.hear()
            stores.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
            me.say(stores[-1].port)
