"""How workers record what they see of `live_workers`, and how their recordings become one history.

A directory holds a recording. Each life of a worker appends to a file of its own there, `WORKER-STAMP.jsonl`, one event
a line, each in one write; so a process that is killed leaves at most its last line torn. Whoever kills a worker appends
its failure to `failures.jsonl`. Nobody reads before the run is over, and nobody removes anything: a recording begins in
an empty directory.

A trainer (`softrun.testing.record`) cannot know all of that: its file, `WORKER-STAMP.trainer.jsonl`, holds what the
process saw, and `softrun.testing.lives` completes it.

All stamps are of `time.monotonic`, which the processes of one host share. To join the recordings of several hosts,
widen the stamps of each by the error of its clock: calls earlier, replies later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from softrun.testing.history import (
    Call,
    Error,
    Event,
    Evicted,
    Fail,
    History,
    HistoryError,
    Incarnation,
    Reply,
    Start,
    Vote,
    Worker,
    one_line,
)
from softrun.testing.lives import completed

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
_FAILURES = "failures.jsonl"
_OF_TRAINER = ".trainer"


class Recorder:
    """Records one life of a worker, from the thread that calls. To make one records the start, so make it before the
    worker registers with the service. `is_trainer`: what it cannot know is completed when the recordings are joined."""

    def __init__(
        self, directory: Path, worker: Worker, inc: Incarnation | None = None, is_trainer: bool = False
    ) -> None:
        self._worker = worker
        kind = _OF_TRAINER if is_trainer else ""
        name = f"{quote(str(worker), safe='')}-{time.monotonic_ns()}{kind}.jsonl"
        self._file = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._write(Start(**self._now(), inc=inc))

    def call(self, scope: Iterable[Worker] | None = None, vote: Vote | None = None, tag: Worker | None = None) -> None:
        """Record a call, before its request is sent. `scope` is the workers asked about, by default all."""
        self._write(Call(**self._now(), scope=None if scope is None else tuple(scope), vote=vote, tag=tag))

    def reply(
        self,
        live: Iterable[Worker],
        incs: Mapping[Worker, Incarnation] | None = None,
        ok: bool | None = None,
        round_: int | None = None,
        tag: Worker | None = None,
    ) -> None:
        """Record the answer, after its receipt."""
        named = None if incs is None else {str(worker): inc for worker, inc in incs.items()}
        self._write(Reply(**self._now(), live=tuple(live), incs=named, ok=ok, round=round_, tag=tag))

    def error(self, ok: Literal[False] | None = None) -> None:
        """Record that the call has ended without an answer. `ok` is False if its block was said to have failed."""
        self._write(Error(**self._now(), ok=ok))

    def evicted(self) -> None:
        """Record that the worker was declared dead. This ends its life: record nothing after it."""
        self._write(Evicted(**self._now()))

    def close(self) -> None:
        """Close the file. A process that ends need not."""
        os.close(self._file)

    def _now(self) -> dict[str, Any]:
        return {"t": time.monotonic(), "p": self._worker}

    def _write(self, event: Event) -> None:
        os.write(self._file, _line(event))


def record_failure(directory: Path, worker: Worker) -> None:
    """Record that a worker has died. Call this when its process was reaped: until then it may still record events."""
    file = os.open(directory / _FAILURES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, _line(Fail(t=time.monotonic(), p=worker)))
    finally:
        os.close(file)


def _line(event: Event) -> bytes:
    return event.model_dump_json(exclude_none=True).encode() + b"\n"


def gather(directory: Path) -> History:
    """Join what was recorded in a directory. Raises HistoryError if it does not fit together."""
    files = sorted(directory.glob("*.jsonl"))
    if not files:
        raise HistoryError(f"{directory} has no recording: name the directory that was given to each Recorder")
    read = {file: _read(file) for file in files}
    trainers = [events for file, events in read.items() if file.stem.endswith(_OF_TRAINER)]
    others = [event for file, events in read.items() if not file.stem.endswith(_OF_TRAINER) for event in events]
    events = completed(trainers, others) if trainers else others
    workers = {worker for event in events for worker in _named(event)}
    procs = sorted(workers, key=lambda worker: (isinstance(worker, str), worker))
    try:
        return History(name=directory.name, procs=tuple(procs), events=tuple(sorted(events, key=lambda event: event.t)))
    except ValidationError as error:
        raise HistoryError(f"{directory}: {one_line(error)}") from None


def _read(file: Path) -> list[Event]:
    """Return the events of a file. What follows its last newline was torn when the writer was killed."""
    events = []
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], 1):
        try:
            events.append(_EVENT.validate_json(line))
        except ValidationError as error:
            raise HistoryError(f"{file}, line {number}: {one_line(error)}") from None
    return events


def _named(event: Event) -> Iterable[Worker]:
    yield event.p
    if isinstance(event, Call):
        yield from event.scope or ()
    elif isinstance(event, Reply):
        yield from event.live
