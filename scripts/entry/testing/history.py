"""A history: what some workers saw of `live_workers`, as JSON.

    {"procs": [0, 1], "events": [{"t": 1, "p": 0, "e": "start"}, {"t": 2, "p": 0, "e": "call"}, …]}

`t` is read from one clock, in any unit, or widened by that clock's error: calls earlier, replies later. Events with the
same `t` happened in the order of the list. `p` is the worker. The kinds `e` of event, and what each may carry:

    start    a life of the worker begins; `inc`, its incarnation
    call     it sends a request; `scope`, the workers asked about (by default all), and `vote`, "ok" or "raise": how the
             block before this call ended here
    reply    it has the answer `live`; `incs`, the incarnation of each of them, `ok`, the outcome of the block that this
             call ends, and `round`, the number of the decision
    error    its call ended without an answer
    fail     it died; the service may learn of it late, or believe it early
    evicted  it was declared dead before it ended or knew

Each life is a start, then calls that each end before the next begins, then perhaps `fail` or `evicted`. A start without
either before it implies a failure in between. A worker without a failure lives to the end of the history. One that only
fails was never there. Calls and replies may carry a `tag`, for people. Anything else that JSON carries is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StrictInt, StrictStr, ValidationError, model_validator

Worker = StrictInt | StrictStr
Incarnation = StrictInt | StrictStr
Vote = Literal["ok", "raise"]


class HistoryError(ValueError):
    """A history that cannot be read or judged. Its message is one line that says what to mend."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class _Event(_Model):
    t: FiniteFloat
    p: Worker


class Start(_Event):
    """A life of the worker begins."""

    e: Literal["start"] = "start"
    inc: Incarnation | None = None


class Call(_Event):
    """The worker sends a request."""

    e: Literal["call"] = "call"
    scope: tuple[Worker, ...] | None = None
    vote: Vote | None = None
    tag: Worker | None = None


class Reply(_Event):
    """The worker has an answer."""

    e: Literal["reply"] = "reply"
    live: tuple[Worker, ...]
    incs: dict[str, Incarnation] | None = None
    ok: bool | None = None
    round: int | None = None
    tag: Worker | None = None


class Error(_Event):
    """The worker's call ended without an answer. `ok`: false if it learned that the block before it has failed."""

    e: Literal["error"] = "error"
    ok: Literal[False] | None = None


class Fail(_Event):
    """The worker died."""

    e: Literal["fail"] = "fail"


class Evicted(_Event):
    """The worker was declared dead before it ended or knew."""

    e: Literal["evicted"] = "evicted"


Event = Annotated[Start | Call | Reply | Error | Fail | Evicted, Field(discriminator="e")]


class Move(_Model):
    """A failure that a drawing moves: recorded at one end of the time from `start` to `end`, it may be at the other."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    p: Worker
    recorded: float
    start: float = Field(alias="from")
    end: float = Field(alias="to")


class History(_Model):
    """What some workers saw. `snapshots` and `moved` are for drawings; the checker ignores them."""

    name: str = ""
    procs: tuple[Worker, ...]
    events: tuple[Event, ...]
    snapshots: tuple[float, ...] = ()
    moved: tuple[Move, ...] = ()

    @model_validator(mode="after")
    def _is_possible(self) -> History:
        for fault in _faults(self):
            raise ValueError(fault)
        return self

    def in_order(self) -> list[Event]:
        """Return the events in the order in which they happened."""
        return sorted(self.events, key=lambda event: event.t)


def read_history(path: Path) -> History:
    """Read a history from a JSON file. Raises HistoryError if it is not one, OSError if it cannot be read."""
    return parse_history(path.read_bytes(), str(path))


def parse_history(text: str | bytes, source: str = "the history") -> History:
    """Read a history from JSON. `source` says in errors where it comes from."""
    try:
        return History.model_validate_json(text)
    except ValidationError as error:
        raise HistoryError(f"{source}: {one_line(error)}") from None


def one_line(error: ValidationError) -> str:
    """Return the first fault of a history, with its place, its value and the remedy."""
    fault = error.errors()[0]
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    if fault["type"] == "json_invalid":
        return f"{fault['msg']}: write one JSON object"
    place = ".".join(str(part) for part in fault["loc"]) or "the whole"
    return f"{place} is {_short(fault['input'])}: {fault['msg']}; the format is that of softrun.testing.history"


def _short(value: Any, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"


# --- what no recording of real workers can hold

#: What each kind of event does to its worker; what is missing here cannot happen.
_NEXT: dict[tuple[str, str], str] = {
    ("absent", "start"): "idle",
    ("absent", "fail"): "dead",
    ("idle", "start"): "idle",
    ("idle", "call"): "calling",
    ("idle", "fail"): "dead",
    ("idle", "evicted"): "dead",
    ("calling", "start"): "idle",
    ("calling", "reply"): "idle",
    ("calling", "error"): "idle",
    ("calling", "fail"): "dead",
    ("calling", "evicted"): "dead",
    ("dead", "start"): "idle",
}
_REMEDIES = {
    "absent": "it has not started, so record its start first",
    "idle": "it has no open call, so record the call first, and one end of each call",
    "calling": "its call is still open, so record a reply or an error first",
    "dead": "it has failed or was evicted, so record a start first, and stamp a failure when the worker has ended",
}


def _faults(history: History) -> Iterator[str]:
    workers = set(history.procs)
    if len({str(worker) for worker in workers}) < len(history.procs):
        yield f"procs is {_short(list(history.procs))}: name each worker once, also as text"
    states = dict.fromkeys(workers, "absent")
    incs: dict[Worker, set[Incarnation | None]] = {worker: set() for worker in workers}
    for event in history.in_order():
        if event.p not in workers:
            yield f"{_name(event)} is of a worker that procs lacks: add it to procs"
        following = _NEXT.get((states[event.p], event.e))
        if following is None:
            yield f"{_name(event)} cannot happen: {_REMEDIES[states[event.p]]}"
            return
        states[event.p] = following
        match event:
            case Start(inc=inc):
                if inc is not None and inc in incs[event.p]:
                    yield f"{_name(event)} has the inc {inc!r} for the second time: give each life its own"
                incs[event.p].add(inc)
            case Call(scope=scope) if scope is not None:
                yield from _misnamed(event, "scope", scope, workers)
            case Reply(live=live):
                yield from _misnamed(event, "live", live, workers)
                if event.incs is not None:
                    yield from _nameless(event, event.incs, incs)


def _name(event: Event) -> str:
    return f"the {event.e} of worker {event.p!r} at t={event.t:.12g}"


def _misnamed(event: Event, field: str, named: tuple[Worker, ...], workers: set[Worker]) -> Iterator[str]:
    if not workers.issuperset(named):
        [unknown, *_] = [worker for worker in named if worker not in workers]
        yield f"{_name(event)} has {unknown!r} in {field}, which procs lacks: add it to procs"
    if len(set(named)) < len(named):
        yield f"{_name(event)} has the {field} {_short(list(named))}: name each worker once"


def _nameless(
    event: Reply, named: dict[str, Incarnation], incs: dict[Worker, set[Incarnation | None]]
) -> Iterator[str]:
    if set(named) != {str(worker) for worker in event.live}:
        yield f"{_name(event)} has the incs {_short(named)}: name the workers of live, {_short(list(event.live))}"
    for worker in event.live:
        if None in incs[worker]:
            yield f"{_name(event)} has incs, but worker {worker!r} starts without one: give each of its starts an inc"
