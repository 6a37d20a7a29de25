"""The channel: a directory of JSON files between one agent and one worker incarnation (RFC, "Message channel", 3).

    <root>/<one directory per worker incarnation>/      mode 0700
        event-0000000001.json                           mode 0600, at most 1 MiB
        event-0000000002.json
        status.json
        page                                            memory that both ends share
        calls                                           a socket, for the calls of live_workers
    <root>/<its name>.said                              the worker's bell

Who creates.  The agent makes the directory before it starts the worker and passes its path in SOFTRUN_CHANNEL. A
              restarted worker is a new incarnation and gets a new directory: it can never read its predecessor's mail.
Who writes.   Events: the agent only. Each is written under a temporary name (a leading dot) and renamed to its
              sequence number, which begins at 1 and rises without a gap: a reader sees all of it or nothing.
              The status: the worker only, written in the same way over its last one; then it rings its bell.
Who is woken. Each end watches for files that are closed after writing: the worker in its channel, the agent among the
              bells of its workers. A writer renames its file before it closes it. Nobody waits for notifications of
              renames: each comes in two parts, and watchdog holds the first back for 0.5 s if it reads them apart.
Who reads.    Events: the worker, in the order of their numbers; the last one is valid. A late or slow worker sees the
              events that are still there. The status: the agent, which sees only the newest.
Who removes.  The agent: after each write all events except the newest KEPT, and the directory when the worker is gone.

The agent makes the page, and both ends map it into memory (`softrun.runtime.channel.page`). There the worker shows its
progress, and the agent the number of its newest event, so a worker can look for one after each step. The page also
holds the newest event and the status. The status is read there, and so is an event whose file cannot be had: a full
disk or a cleaner of temporary files does no harm, except that the ends wake a little later, by the beats of the
worker's progress and of the agent. If memory cannot be shared, there are only the files.

Only one process, which has claimed the page, acts as the worker (`softrun.runtime.channel.ownership`). Its children
inherit SOFTRUN_CHANNEL, and may read what the worker is told.

Each other file is {"version": 5, "event": {...}} or {"version": 5, "status": {...}}. Unknown fields are ignored.
Another version is refused: agent and worker must use the same softrun.

What is refused. A directory or a file that is a symbolic link or belongs to another user, a directory that others may
enter, a file that is too big or cannot be understood. A bad directory is an error. A bad *file* is skipped with one
warning, and the last good event stays valid: a damaged file must not end weeks of training.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import tempfile
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from softrun.runtime.channel import line
from softrun.runtime.channel.allowance import allow
from softrun.runtime.channel.directory import BELL, MAX_BYTES, BadFileError, ChannelError, PrivateDirectory
from softrun.runtime.channel.ownership import claim, claimant, is_running
from softrun.runtime.channel.page import EVENT, OWNER, SHOWS, VERSION, Page
from softrun.runtime.channel.page import SIZE as PAGE_BYTES
from softrun.runtime.channel.progress import LastProgress, read_progress
from softrun.runtime.events import WorkerEvent, WorkerStatus

__all__ = ["BELL", "ENVIRONMENT_VARIABLE", "MAX_BYTES", "ChannelError", "EventReader", "EventWriter", "default_root"]

ENVIRONMENT_VARIABLE = "SOFTRUN_CHANNEL"
KEPT = 16
STATUS = "status.json"
PAGE = "page"

_EVENT_NAME = re.compile(r"event-(\d{10})\.json")
_Message = TypeVar("_Message", bound=BaseModel)

_log = logging.getLogger("softrun.runtime")


def default_root() -> Path:
    """Where an agent makes its channels: $SOFTRUN_CHANNEL_ROOT, or else the temporary directory.

    Not $XDG_RUNTIME_DIR, which is removed when the user logs out, even if a job of theirs goes on in a tmux.
    """
    chosen = os.environ.get("SOFTRUN_CHANNEL_ROOT")
    if chosen:
        if not _is_writable_directory(chosen):
            raise ChannelError(
                f"SOFTRUN_CHANNEL_ROOT={chosen} is not a directory that can be written to: make it or unset it"
            )
        return Path(chosen).absolute()  # a trainer may change its directory
    return Path(tempfile.gettempdir()).absolute()


class EventWriter:
    """The agent's end of one channel."""

    def __init__(self, directory: PrivateDirectory) -> None:
        directory.replace(PAGE, bytes(PAGE_BYTES))
        directory.ring()  # now, while the disk has room for a bell
        self._directory = directory
        self._page = _shared(directory)
        self._written = 0
        self._oldest = 1
        self._heard = 0  # the number of the last status that `news` returned
        self._warned: set[str] = set()

    @classmethod
    def create(cls, directory: Path) -> EventWriter:
        """Make the channel's directory, which must not exist yet."""
        return cls(PrivateDirectory.create(directory))

    def listen(self) -> socket.socket:
        """Return the socket to which the worker connects for its calls (`softrun.runtime.channel.line`)."""
        return line.listen(self._directory)

    @property
    def path(self) -> Path:
        """The channel's directory: the worker's SOFTRUN_CHANNEL."""
        return self._directory.path

    def write(self, event: WorkerEvent) -> WorkerEvent:
        """Send the event under the next sequence number and return it with that number.

        After a ChannelError nothing was sent and no number was spent: the same event can be written again.
        """
        number = self._written + 1
        numbered = event.model_copy(update={"sequence": number})
        content = _encode("event", numbered)
        kept = self._page is not None and self._page.told.put(number, content)
        try:
            self._directory.replace(_event_name(number), content)
        except ChannelError as error:
            if not kept:
                raise
            self._warn("event", f"a worker is told through shared memory only: {error}")
        if self._page is not None:
            self._page.words[EVENT] = number
        self._written = number
        while self._oldest <= self._written - KEPT:
            self._directory.discard(_event_name(self._oldest))
            self._oldest += 1
        return numbered

    @property
    def shares_memory(self) -> bool:
        """Whether there is a page beside the files."""
        return self._page is not None

    def read_status(self) -> WorkerStatus | None:
        """The worker's last status; None if it has written none yet, or none that can be understood."""
        try:
            content = self._page.said.get(0) if self._page is not None else None
            if content is None:
                content = self._directory.read(STATUS)
            return None if content is None else _decode(content, "status", WorkerStatus, self.path / STATUS)
        except ChannelError as error:
            self._warn("status", f"a worker's status is passed over: {error}")
            return None

    def news(self) -> WorkerStatus | None:
        """The status, if the worker has written another since the last call; always None without shared memory."""
        if self._page is None or (number := self._page.said.number) == self._heard:
            return None
        self._heard = number
        return self.read_status()

    def read_progress(self) -> LastProgress | None:
        """The worker's progress; None if it shows none."""
        return read_progress(self._page) if self._page is not None else None

    def ask_for_stacks(self) -> int | None:
        """Have the worker show the stacks of its threads other than the main one; returns its process id if it can."""
        if self._page is None or not self._page.is_in_use or not is_running(self._page.words[OWNER]):
            return None
        self._page.words[SHOWS] += 1
        return claimant(self._page.words[OWNER])

    def allow(self, hold_at_s: float, leave_at_s: float) -> None:
        """Let the worker work on until then without another sign: seconds by the agent's clock, 0 for no bound."""
        if self._page is not None:
            allow(self._page, hold_at_s, leave_at_s)

    def _warn(self, about: str, text: str) -> None:
        """Warn, once for each `about`."""
        if about not in self._warned:
            self._warned.add(about)
            _log.warning(text)

    def remove(self) -> None:
        """Remove the directory and the channel's own files in it. If there are other files, both they and it stay."""
        try:
            for name in self._directory.names():
                if _is_ours(name):
                    self._directory.discard(name)
            self._directory.bell.unlink(missing_ok=True)
            self.path.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            _log.warning("channel directory %s was not removed: %s", self.path, error.strerror)
        self._directory.close()


class EventReader:
    """The worker's end of one channel."""

    def __init__(self, directory: Path) -> None:
        self._directory = PrivateDirectory(directory)
        self._seen = 0
        self._claim: int | None = None
        self._warned = False
        self.page = _shared(self._directory)
        """None if memory cannot be shared."""

    def may_follow(self, event: WorkerEvent) -> bool:
        """Whether there may be a later event than this one. Makes no system call if memory is shared."""
        return self.page is None or self.page.words[EVENT] != event.sequence

    def poll(self) -> list[WorkerEvent]:
        """The events since the last poll, in order. Costs a few microseconds when there are none.

        An event whose file cannot be read is skipped, unless it is the newest.
        """
        events: list[WorkerEvent] = []
        sent = self.page.words[EVENT] if self.page is not None else 0
        failure: ChannelError | None = None
        try:
            self._read_files(events)
        except ChannelError as error:
            failure = error
        if self.page is not None and sent > self._seen and (content := self.page.told.get(self._seen)) is not None:
            events.append(event := _decode(content, "event", WorkerEvent, self._directory.path / PAGE))
            self._seen = event.sequence
        elif failure is not None and not events:
            raise failure
        return events

    def line(self) -> line.Line:
        """Connect to the agent, to make calls. Raises ChannelError if there is none."""
        return line.Line(self._directory)

    def claim(self) -> bool:
        """Make this process the worker; returns False if another process is."""
        if not self.is_worker and (self.page is None or claim(self.page)):
            self._claim = self.page.words[OWNER] if self.page is not None else os.getpid()
        return self.is_worker

    @property
    def is_worker(self) -> bool:
        """Whether this process is the worker, and no other has claimed the channel since."""
        return self._claim is not None and (self.page is None or self.page.words[OWNER] == self._claim)

    @property
    def worker(self) -> int:
        """The id of the process that has claimed the channel; 0 if none has."""
        return claimant(self.page.words[OWNER]) if self.page is not None else 0

    def told(self) -> WorkerStatus:
        """What this process has told last, also through an earlier reader."""
        if self.page is not None and self.worker == os.getpid() and (content := self.page.said.get(0)) is not None:
            return _decode(content, "status", WorkerStatus, self._directory.path / PAGE)
        return WorkerStatus()

    def close(self) -> None:
        """Close the descriptors. The claim stays."""
        self._directory.close()
        if self.page is not None:
            self.page.close()

    def write_status(self, status: WorkerStatus) -> None:
        """Tell the agent, as the worker. After a ChannelError the agent was not told."""
        content = _encode("status", status)
        said = self.page.said if self.page is not None else None
        told = said is not None and said.put(said.number + 1, content)
        try:
            self._directory.replace(STATUS, content)
            self._directory.ring()
        except ChannelError as error:
            if not told:
                raise
            if not self._warned:
                self._warned = True
                _log.warning("the agent is told through shared memory only: %s", error)

    def _read_files(self, events: list[WorkerEvent]) -> None:
        while (number := self._next()) is not None:
            try:
                event = self._load(number)
            except BadFileError as error:
                _log.warning("skipped an event that cannot be read: %s", error)
                self._seen = number
                continue
            if event is not None:  # None: pruned since _next saw it; there are later ones
                self._seen = number
                events.append(event)

    def _next(self) -> int | None:
        if self._seen:
            if self._directory.holds(_event_name(self._seen + 1)):
                return self._seen + 1
            # Events are pruned oldest first: as long as the last one seen is there, no later one was pruned.
            if self._directory.holds(_event_name(self._seen)):
                return None
        found = (_EVENT_NAME.fullmatch(name) for name in self._directory.names())
        return min((number for match in found if match and (number := int(match[1])) > self._seen), default=None)

    def _load(self, number: int) -> WorkerEvent | None:
        path = self._directory.path / _event_name(number)
        content = self._directory.read(path.name)
        if content is None:
            return None
        event = _decode(content, "event", WorkerEvent, path)
        if event.sequence != number:
            raise BadFileError(f"{path} holds event {event.sequence}: its name and its content must agree")
        return event


def _shared(directory: PrivateDirectory) -> Page | None:
    memory = directory.share(PAGE, PAGE_BYTES)
    return Page(memory) if memory is not None else None


def _event_name(number: int) -> str:
    return f"event-{number:010d}.json"


def _is_ours(name: str) -> bool:
    published = name.removeprefix(".").removesuffix(".new")
    return published in (STATUS, PAGE, line.NAME) or _EVENT_NAME.fullmatch(published) is not None


def _is_writable_directory(path: str) -> bool:
    return Path(path).is_dir() and os.access(path, os.W_OK | os.X_OK)


def _encode(kind: str, message: BaseModel) -> bytes:
    return f'{{"version": {VERSION}, "{kind}": {message.model_dump_json()}}}\n'.encode()


def _decode(content: bytes, kind: str, of: type[_Message], path: Path) -> _Message:
    try:
        envelope = json.loads(content)
        version = envelope["version"]
        if isinstance(version, int) and version != VERSION:
            raise ChannelError(
                f"{path} has version {version}, this softrun knows {VERSION}: "
                "install the same version of softrun for the agent and for the worker"
            )
        return of.model_validate(envelope[kind])
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # a ValidationError is a ValueError
        raise BadFileError(f"{path} is not a {kind} of this channel: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{type(error).__name__}: {error}".splitlines()[0]
