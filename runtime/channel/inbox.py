"""A worker's inbox: the last event, waiting for the next, and passing each on to subscribers."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from softrun.runtime.channel.channel import ENVIRONMENT_VARIABLE, ChannelError, EventReader
from softrun.runtime.channel.line import Line
from softrun.runtime.channel.page import Page
from softrun.runtime.channel.progress import BEAT_INTERVAL_S
from softrun.runtime.channel.watcher import DirectoryWatcher
from softrun.runtime.events import WorkerEvent, WorkerInfo, WorkerState, WorkerStatus

# The watcher wakes those that wait. A wait also looks by itself, in case a notification is lost, which shows progress.
LOOK_INTERVAL_S = BEAT_INTERVAL_S

Subscriber = Callable[[WorkerEvent], None]

_log = logging.getLogger("softrun.runtime")


class Inbox(Protocol):
    """Where a worker's events come from."""

    def last(self) -> WorkerEvent:
        """The newest event. It is never older than the last one sent before the call."""

    def wait(self, after: int, at_most_s: float = LOOK_INTERVAL_S) -> None:
        """Return once there is an event with a sequence above `after`, or after `at_most_s`: call it in a loop."""

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with each later event, in order; returns a function that ends this."""

    def look(self) -> None:
        """Call the subscribers soon, in case a notification was lost. Does not wait."""

    def claim(self) -> bool:
        """Become the worker, which alone may tell the agent. Returns False if another process is; this one may read."""

    def worker(self) -> int:
        """The id of the process that is the worker."""

    def tell(self, status: WorkerStatus) -> None:
        """Tell the agent. Only the worker is heard."""

    def told(self) -> WorkerStatus:
        """What this process has told the agent last, through this or an earlier inbox."""

    def page(self) -> Page | None:
        """Memory that the agent shares with the worker; None if there is no agent."""

    def line(self) -> Line:
        """Connect to the agent, to make calls. Raises ChannelError, or RuntimeError if there is no agent."""

    def close(self) -> None:
        """End the threads and close the descriptors. It is of no use after that."""


class ChannelInbox:
    """The events of a channel."""

    def __init__(self, directory: Path) -> None:
        self._reader = EventReader(directory)
        self._path = directory
        # Reentrant: a signal handler of the user may ask for the event at any moment.
        self._arrived = threading.Condition(threading.RLock())
        self._calling = threading.Lock()  # the subscribers, one event after the other
        self._last: WorkerEvent | None = None
        self._untold: deque[WorkerEvent] = deque()
        self._subscribers: dict[object, tuple[int, Subscriber]] = {}
        self._watcher: DirectoryWatcher | None = None
        self._told: WorkerStatus | None = None

    def last(self) -> WorkerEvent:
        last = self._last
        # Not what was polled: the watcher may be about to take that in.
        if last is not None and not self._reader.may_follow(last):
            return last
        with self._arrived:
            self._poll()
            while self._last is None:
                # RFC: "TE agent always sends initial event to the worker process". It has not arrived yet.
                self._watch()
                self._arrived.wait(LOOK_INTERVAL_S)
                self._poll()
            return self._last

    def wait(self, after: int, at_most_s: float = LOOK_INTERVAL_S) -> None:
        with self._arrived:
            self._watch()
            self._poll()
            if self._last is None or self._last.sequence <= after:
                self._arrived.wait(at_most_s)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        key = object()
        with self._arrived:
            self._watch()
            self._poll()
            self._subscribers[key] = (self._last.sequence if self._last else 0, subscriber)

        def unsubscribe() -> None:
            with self._arrived:
                self._subscribers.pop(key, None)

        return unsubscribe

    def look(self) -> None:
        last = self._last
        news = self._untold or last is None or self._reader.may_follow(last)
        if news and self._watcher is not None and not self._calling.locked():
            threading.Thread(target=self._changed, args=(self._path,), name="softrun-news", daemon=True).start()

    def claim(self) -> bool:
        return self._reader.claim()

    def worker(self) -> int:
        return self._reader.worker

    def tell(self, status: WorkerStatus) -> None:
        if status == self._told or not self._reader.is_worker:
            return
        with self._arrived:
            try:
                self._reader.write_status(status)
                self._told = status
            except ChannelError as error:
                _log.warning("the agent could not be told yet, and will be told later: %s", error)

    def told(self) -> WorkerStatus:
        return self._reader.told()

    def page(self) -> Page | None:
        if self._reader.page is None:
            _log.warning("nobody will notice if this worker hangs: its channel's file system cannot share memory")
        return self._reader.page

    def line(self) -> Line:
        return self._reader.line()

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        with self._calling:  # what was begun by `look`
            self._subscribers.clear()
        self._reader.close()

    def _poll(self) -> None:
        try:
            events = self._reader.poll()
        except ChannelError as error:
            if self._last is None:
                raise
            _log.warning("no new event could be read, so the last one still holds: %s", error)
            return
        for event in events:
            if self._last is None or event.sequence > self._last.sequence:
                if self._subscribers and not _is_about_steps(event, self._last):
                    self._untold.append(event)
                self._last = event
                self._arrived.notify_all()

    def _watch(self) -> None:
        if self._watcher is None:
            self._watcher = DirectoryWatcher(self._path, self._changed)
            self._watcher.start()

    def _changed(self, _: Path) -> None:
        """Take in new events; called in the watcher's thread, or another of softrun's threads."""
        with self._calling:
            self._call_subscribers()

    def _call_subscribers(self) -> None:
        with self._arrived:
            self._poll()
        while True:
            with self._arrived:
                if not self._untold:
                    return
                event = self._untold.popleft()
                due = [call for after, call in self._subscribers.values() if event.sequence > after]
            for call in due:
                try:
                    call(event)
                except Exception:
                    _log.exception("a callback of on_world_change failed on event %d", event.sequence)


def _is_about_steps(event: WorkerEvent, last: WorkerEvent | None) -> bool:
    """Whether the event leaves the world unchanged, and only says when to wait, to go on, to leave, or to end."""
    if event.stop_after is not None:
        return True
    if last is None or last.round != event.round or event.worker_state is not WorkerState.HEALTHY:
        return False
    if event.signum:
        return True  # the trainer's own handler is about to run
    return last.stop_after is not None or (event.preemption is not None and last.worker_state is WorkerState.HEALTHY)


class StaticInbox:
    """The single world of a launcher without channels, from torchrun's environment variables."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._event = WorkerEvent(
            timestamp=time.time_ns() // 1_000_000,
            worker_info=_from_environment(environment),
            worker_state=WorkerState.HEALTHY,
            round=1,
            sequence=1,
        )

    def last(self) -> WorkerEvent:
        return self._event

    def wait(self, after: int, at_most_s: float = LOOK_INTERVAL_S) -> None:  # noqa: ARG002
        raise RuntimeError(
            f"world {self._event.round} is broken and nobody can form a new one (event {after} was the last): "
            "start the trainer with `python -m softrun --restart_policy soft` instead"
        )

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:  # noqa: ARG002
        return lambda: None

    def look(self) -> None:
        pass

    def claim(self) -> bool:
        return True

    def worker(self) -> int:
        return os.getpid()

    def tell(self, status: WorkerStatus) -> None:
        pass

    def told(self) -> WorkerStatus:
        return WorkerStatus()

    def page(self) -> Page | None:
        return None

    def line(self) -> Line:
        raise RuntimeError(
            "live_workers and live_barrier ask this worker's agent, and a launcher without agents has started it: "
            "start the trainer with `python -m softrun --restart_policy soft` instead"
        )

    def close(self) -> None:
        pass


def open_inbox() -> Inbox:
    """Open this process's inbox, as its environment says."""
    channel = os.environ.get(ENVIRONMENT_VARIABLE)
    return ChannelInbox(Path(channel)) if channel else StaticInbox(os.environ)


def _from_environment(environment: Mapping[str, str]) -> WorkerInfo:
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if missing := [name for name in needed if name not in environment]:
        raise RuntimeError(
            f"this process has no world ({ENVIRONMENT_VARIABLE} and {', '.join(missing)} are not set): "
            "start it with `python -m softrun [options] script.py`"
        )
    rank, world_size = environment["RANK"], environment["WORLD_SIZE"]
    try:
        return WorkerInfo.model_validate(
            {
                "rank": rank,
                "world_size": world_size,
                "local_rank": environment.get("LOCAL_RANK", rank),
                "local_world_size": environment.get("LOCAL_WORLD_SIZE", world_size),
                "role_rank": environment.get("ROLE_RANK", rank),
                "role_world_size": environment.get("ROLE_WORLD_SIZE", world_size),
                "group_rank": environment.get("GROUP_RANK", 0),
                "group_world_size": environment.get("GROUP_WORLD_SIZE", 1),
                "master_addr": environment["MASTER_ADDR"],
                "master_port": environment["MASTER_PORT"],
            }
        )
    except ValueError as error:
        faults = str(error).splitlines()
        raise RuntimeError(f"the launcher's environment names no world: {' '.join(faults[1:3])}") from error
