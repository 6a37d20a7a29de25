"""A fake agent: it makes the channels of real worker processes on this host, and forms worlds when a test says so."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any, TypeVar

from local_cluster import COMMON_ENV, PATIENCE_S, Begin, begin
from softrun.runtime.channel.channel import ENVIRONMENT_VARIABLE, EventWriter
from softrun.runtime.events import WorkerEvent, WorkerInfo, WorkerState, WorkerStatus, WorldChangeEvent

_Value = TypeVar("_Value")

COUNTS = """
import time
from softrun.runtime import WorldChanged, worlds
step = 0
for world in worlds():
    print("in world", world.round)
    try:
        while True:
            step += 1
            time.sleep(0.005)
            world.check(step)
    except WorldChanged:
        print("left", world.round, "after", step)
"""
"""A trainer that counts its steps, and does nothing else in them."""


def wait_until(look: Callable[[], _Value | None], what: str) -> _Value:
    """The first true value of `look`, which is asked every few milliseconds."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.005)
    raise TimeoutError(f"waited {PATIENCE_S:g} s in vain for {what}")


def an_info(rank: int = 0, world_size: int = 1, port: int = 29500) -> WorkerInfo:
    return WorkerInfo(
        local_rank=rank,
        role_rank=rank,
        rank=rank,
        local_world_size=world_size,
        role_world_size=world_size,
        world_size=world_size,
        master_addr="127.0.0.1",
        master_port=port,
    )


def an_event(
    round_: int = 1,
    state: WorkerState = WorkerState.HEALTHY,
    change: WorldChangeEvent | None = None,
    info: WorkerInfo | None = None,
    **steps: int | None,
) -> WorkerEvent:
    return WorkerEvent(
        timestamp=time.time_ns() // 1_000_000,
        worker_info=info or an_info(),
        worker_state=state,
        change_event=change,
        round=round_,
        **steps,
    )


class Worker:
    """A worker process with its channel."""

    def __init__(self, channel: Path, script: str, environment: dict[str, str], begin: Begin) -> None:
        self.writer = EventWriter.create(channel)
        self.info = an_info()
        self._output = channel.with_suffix(".log")
        command = [sys.executable, "-u", "-c", dedent(script)]
        self.process = begin(command, {**os.environ, **environment, ENVIRONMENT_VARIABLE: str(channel)}, self._output)

    @property
    def status(self) -> WorkerStatus | None:
        """What it has told last, but for what it tells by itself, sooner or later: that it works, and that it ends."""
        status = self.writer.read_status()
        return status and status.model_copy(update={"worked": 0, "ends": False})

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def step(self) -> int:
        """The last step that it has completed; 0 before the first."""
        progress = self.writer.read_progress()
        return (progress.step or 0) if progress is not None else 0

    def says(self, line: str) -> None:
        """Wait until the worker has printed the line."""

        def look() -> bool:
            lines = self.output.splitlines()
            assert line in lines or self.process.poll() is None, f"ended without {line!r}:\n{self.output}"
            return line in lines

        try:
            wait_until(look, f"{line!r}")
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the worker printed:\n{self.output}") from None

    def ends(self) -> int:
        """The exit code, once there is one."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the worker does not end; it printed:\n{self.output}") from None

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end_by_force(self) -> None:
        for kill in (os.kill, os.killpg):  # it may have no group yet
            with contextlib.suppress(ProcessLookupError):
                kill(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        self.writer.remove()


class FakeAgent:
    def __init__(self, root: Path, begin: Begin) -> None:
        self.round = 0
        self._root = root
        self._begin = begin
        self._workers: list[Worker] = []
        self._stores: list[Any] = []
        self._environment = {"TORCHELASTIC_USE_AGENT_STORE": "True", **COMMON_ENV}

    def start(self, script: str, **environment: str) -> Worker:
        return self._start(script, environment, self._begin)

    def start_without_torch(self, script: str) -> Worker:
        """A worker that has imported no more than its script does."""
        return self._start(script, {}, begin)

    def _start(self, script: str, environment: dict[str, str], begin: Begin) -> Worker:
        channel = self._root / f"worker-{len(self._workers)}"
        worker = Worker(channel, script, {**self._environment, **environment}, begin)
        self._workers.append(worker)
        return worker

    def form(
        self, members: list[Worker], change: WorldChangeEvent | None = None, leave_after: int | None = None
    ) -> None:
        """A new world of these members, in rank order, with a store of its own."""
        self.round += 1
        port = self._new_store()
        for rank, member in enumerate(members):
            member.info = an_info(rank, len(members), port)
            event = an_event(self.round, WorkerState.HEALTHY, change, member.info, leave_after=leave_after)
            member.writer.write(event)

    def pause(self, members: list[Worker], change: WorldChangeEvent, leave_after: int | None = None) -> None:
        for member in members:
            event = an_event(self.round, WorkerState.PAUSED, change, member.info, leave_after=leave_after)
            member.writer.write(event)

    def tell_to_end(self, worker: Worker, state: WorkerState, signum: int = signal.SIGTERM) -> None:
        """As an agent does it: an event, and the signal."""
        worker.writer.write(an_event(self.round, state, None, worker.info, signum=signum))
        worker.signal(signum)

    def hold(self, members: list[Worker], stop_after: int | None) -> None:
        for member in members:
            member.writer.write(an_event(self.round, WorkerState.HEALTHY, None, member.info, stop_after=stop_after))

    def end(self) -> None:
        for worker in self._workers:
            worker.end_by_force()
        self._stores.clear()

    def _new_store(self) -> int:
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._stores.append(store)  # it is closed with its last reference
        return int(store.port)
