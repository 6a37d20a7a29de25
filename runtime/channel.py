"""The channel: a directory of JSON files between one agent and one worker incarnation (RFC, "Message channel", 3).

    <root>/<one directory per worker incarnation>/      mode 0700
        event-0000000001.json                           mode 0600, at most 1 MiB
        event-0000000002.json
        status.json
        progress                                        56 bytes of memory that both ends share
    <root>/<its name>.said                              the worker's bell

Who creates.  The agent makes the directory before it starts the worker and passes its path in SOFTRUN_CHANNEL. A
              restarted worker is a new incarnation and gets a new directory: it can never read its predecessor's mail.
Who writes.   Events: the agent only. Each is written under a temporary name (a leading dot) and renamed to its
              sequence number, which begins at 1 and only rises, without a gap: a reader sees all of an event or nothing
              of it. The status: the worker only, written in the same way over its last one; then it rings its bell.
Who is woken. Each end watches for files that are closed after they were written, the worker in its channel, the agent
              among the bells of its workers. A file is closed after it was renamed. Notifications of renames are not
              waited for: one of them is two, and watchdog holds the first back for 0.5 s where it reads them apart.
Who reads.    Events: the worker, in order of their numbers; the last one holds. It may come late and it may be slow:
              it then sees the events that are still there. The status: the agent, which sees the newest only.
Who removes.  The agent: old events but the newest KEPT after each write, and the directory when the worker is gone.

The progress is made by the agent and mapped into the memory of both ends (`softrun.runtime.progress`). There the worker
shows that it goes on, and the agent the number of its newest event: a worker may look for one after each step.

Each other file is {"version": 3, "event": {...}} or {"version": 3, "status": {...}}. Unknown fields are passed over. A
higher version is refused: agent and worker must use the same softrun.

What is refused. A directory or a file that is a symbolic link or belongs to somebody else, a directory that others may
enter, a file that is too big or not to be understood. A bad directory is an error. A bad *file* is passed over with
one warning and the last good event goes on to hold: a damaged file must not end weeks of training.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from softrun.runtime.directory import BELL, MAX_BYTES, BadFileError, ChannelError, PrivateDirectory
from softrun.runtime.events import WorkerEvent, WorkerStatus
from softrun.runtime.progress import SIZE as PROGRESS_BYTES
from softrun.runtime.progress import LastProgress, NewestEvent, read_progress

__all__ = ["BELL", "ENVIRONMENT_VARIABLE", "MAX_BYTES", "ChannelError", "EventReader", "EventWriter", "default_root"]

ENVIRONMENT_VARIABLE = "SOFTRUN_CHANNEL"
KEPT = 16
STATUS = "status.json"
PROGRESS = "progress"
VERSION = 3

_EVENT_NAME = re.compile(r"event-(\d{10})\.json")
_Message = TypeVar("_Message", bound=BaseModel)

_log = logging.getLogger("softrun.runtime")


def default_root() -> Path:
    """Where an agent makes its channels: $SOFTRUN_CHANNEL_ROOT, else the temporary directory.

    Not $XDG_RUNTIME_DIR, which is removed when its user logs out, be it that a job of the user's goes on in a tmux.
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
        directory.replace(PROGRESS, bytes(PROGRESS_BYTES))
        self._directory = directory
        self._progress = directory.share(PROGRESS, PROGRESS_BYTES)
        self._newest = NewestEvent(self._progress) if self._progress is not None else None
        self._written = 0
        self._oldest = 1
        self._warned = False

    @classmethod
    def create(cls, directory: Path) -> EventWriter:
        """Make the channel's directory, which must not exist yet."""
        return cls(PrivateDirectory.create(directory))

    @property
    def path(self) -> Path:
        """The channel's directory: the worker's SOFTRUN_CHANNEL."""
        return self._directory.path

    def write(self, event: WorkerEvent) -> WorkerEvent:
        """Send the event under the next sequence number and return it with that number.

        After a ChannelError nothing was sent and no number was spent: the same event can be written again.
        """
        numbered = event.model_copy(update={"sequence": self._written + 1})
        self._directory.replace(_event_name(numbered.sequence), _encode("event", numbered))
        self._written = numbered.sequence
        if self._newest is not None:
            self._newest.set(numbered.sequence)
        while self._oldest <= self._written - KEPT:
            self._directory.discard(_event_name(self._oldest))
            self._oldest += 1
        return numbered

    def read_status(self) -> WorkerStatus | None:
        """What the worker last told; None if it has told nothing yet, or nothing that can be understood."""
        try:
            content = self._directory.read(STATUS)
            return None if content is None else _decode(content, "status", WorkerStatus, self.path / STATUS)
        except ChannelError as error:
            if not self._warned:
                self._warned = True
                _log.warning("a worker's status is passed over: %s", error)
            return None

    def read_progress(self) -> LastProgress | None:
        """What the worker shows of its progress; None if it shows none."""
        return read_progress(self._progress[:]) if self._progress is not None else None

    def remove(self) -> None:
        """Remove the directory and the channel's own files in it. Foreign files stay, and so does their directory."""
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
        self.progress = self._directory.share(PROGRESS, PROGRESS_BYTES)
        """Memory that the agent reads; None where it cannot be shared."""
        self._newest = NewestEvent(self.progress) if self.progress is not None else None

    def may_follow(self, event: WorkerEvent) -> bool:
        """Whether there may be a later event than this one. Makes no system call where memory can be shared."""
        return self._newest is None or self._newest.is_not(event.sequence)

    def poll(self) -> list[WorkerEvent]:
        """The events since the last poll, in order. Costs a few microseconds when there are none."""
        events: list[WorkerEvent] = []
        while (number := self._next()) is not None:
            try:
                event = self._load(number)
            except BadFileError as error:
                _log.warning("an event is passed over: %s", error)
                self._seen = number
                continue
            if event is not None:  # None: pruned since _next saw it; there are later ones
                self._seen = number
                events.append(event)
        return events

    def write_status(self, status: WorkerStatus) -> None:
        self._directory.replace(STATUS, _encode("status", status))
        self._directory.ring()

    def _next(self) -> int | None:
        if self._seen:
            if self._directory.holds(_event_name(self._seen + 1)):
                return self._seen + 1
            # Events are pruned oldest first: while the last one seen is there, none after it was pruned.
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


def _event_name(number: int) -> str:
    return f"event-{number:010d}.json"


def _is_ours(name: str) -> bool:
    published = name.removeprefix(".").removesuffix(".new")
    return published in (STATUS, PROGRESS) or _EVENT_NAME.fullmatch(published) is not None


def _is_writable_directory(path: str) -> bool:
    return Path(path).is_dir() and os.access(path, os.W_OK | os.X_OK)


def _encode(kind: str, message: BaseModel) -> bytes:
    return f'{{"version": {VERSION}, "{kind}": {message.model_dump_json()}}}\n'.encode()


def _decode(content: bytes, kind: str, of: type[_Message], path: Path) -> _Message:
    try:
        envelope = json.loads(content)
        version = envelope["version"]
        if isinstance(version, int) and version > VERSION:
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
