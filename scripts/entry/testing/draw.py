"""A history as a picture: a row for each worker, and time from left to right.

A dot is a start. A bar is a call, with its answer at its end; a hollow one got no answer. A cross is a failure, a
crossed ring an eviction. The colours can be seen on white and on black, and mean nothing that the shapes do not say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape

from softrun.testing.history import Call, Error, Event, Evicted, Fail, History, Move, Reply, Start, Worker

ROW, BAR, MARK = 48.0, 26.0, 6.5  # the heights of a row and of a bar, and half of a mark's
LEFT, RIGHT, TOP, BOTTOM = 96.0, 24.0, 14.0, 34.0
LEAST_WIDTH, MOST_WIDTH = 520.0, 6000.0
CHARACTER = 7.6  # how wide one is, about, in the texts of the bars
TEXT, LINE, CALL, START, FAILURE, EVICTION, MOMENT = (
    "#737a86",
    "#8a93a3",
    "#3f77b0",
    "#3d8b5f",
    "#c2463d",
    "#a8740f",
    "#8a5cc4",
)


def draw(history: History, title: str = "", desc: str = "") -> str:
    """Return a picture of a history as SVG; the same for the same history.

    `title` and `desc` are for those that cannot see it: by default the history's name, and what each worker did.
    """
    return _Picture(history).svg(title or history.name or "What each worker saw", desc or tell(history))


def tell(history: History) -> str:
    """Return what each worker did, in words."""
    return " ".join(
        f"Worker {row.worker}: {', '.join(map(_words, row.events))}." for row in _rows(history) if row.events
    )


def _words(event: Event) -> str:
    match event:
        case Start(inc=inc):
            what = "starts" if inc is None else f"starts as {inc}"
        case Call():
            what = " ".join(["calls", *_request(event)])
        case Reply(live=live, ok=ok):
            what = f"is answered {_set(live)}{_OUTCOMES[ok]}"
        case _:
            what = {"error": "gets an error", "fail": "fails", "evicted": "is evicted"}[event.e]
    return f"{what} at {_time(event.t)}"


_OUTCOMES = {None: "", True: " and that its block succeeded", False: " and that its block failed"}
_SIGNS = {None: "", True: " ✓", False: " ✗"}


def _request(call: Call) -> Iterator[str]:
    if call.scope is not None:
        yield f"about {_set(call.scope)}"
    if call.vote is not None:
        yield f"voting {call.vote}"


def _set(workers: Iterable[Worker]) -> str:
    return "{" + ", ".join(map(str, workers)) + "}"


def _time(value: float) -> str:
    return f"{value:.12g}"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


# --- what is in a row


@dataclass
class _Bar:
    """A call."""

    call: Call
    end: float
    result: Reply | Error | None = None

    @property
    def request(self) -> str:
        """What stands at its beginning."""
        return " ".join(word for word in _request(self.call) if word != "voting ok")

    @property
    def answer(self) -> str:
        """What stands at its end."""
        if isinstance(self.result, Reply):
            return _set(self.result.live) + _SIGNS[self.result.ok]
        return "error" if self.result else ""

    @property
    def words(self) -> str:
        """What it stands for."""
        return f"{_words(self.call)}, {_words(self.result) if self.result else 'gets no answer'}"

    @property
    def room(self) -> float:
        """How wide it must be to hold its texts."""
        return CHARACTER * (len(self.request) + len(self.answer) + 3)


@dataclass
class _Row:
    """What a worker did."""

    worker: Worker
    events: list[Event] = field(default_factory=list)
    lives: list[tuple[float, float]] = field(default_factory=list)
    bars: list[_Bar] = field(default_factory=list)

    def idle(self) -> Iterator[tuple[float, float]]:
        """Yield the times at which it was alive and not in a call."""
        for begin, end in self.lives:
            at = begin
            for bar in self.bars:
                if begin <= bar.call.t <= end:
                    yield at, bar.call.t
                    at = bar.end
            if at < end:
                yield at, end


def _rows(history: History) -> list[_Row]:
    rows = {worker: _Row(worker) for worker in history.procs}
    last = max((event.t for event in history.events), default=0.0)
    last = max([last, *(move.end for move in history.moved)])
    for event in history.in_order():
        rows[event.p].events.append(event)
    moved = {(move.p, move.recorded): move for move in history.moved}
    for row in rows.values():
        _lay_out(row, last, moved)
    return list(rows.values())


def _lay_out(row: _Row, last: float, moved: dict[tuple[Worker, float], Move]) -> None:
    """Find a row's lives and bars. Failures count where they are moved to."""
    is_alive = is_calling = False
    for event in row.events:
        at = event.t
        if isinstance(event, (Fail, Evicted)) and (row.worker, event.t) in moved:
            at = _target(moved[row.worker, event.t])
        if is_calling:
            row.bars[-1].end = at
        if is_alive:
            row.lives[-1] = (row.lives[-1][0], at)
        match event:
            case Start():
                row.lives.append((at, last))
                is_alive, is_calling = True, False
            case Call():
                row.bars.append(_Bar(event, last))
                is_calling = True
            case Reply() | Error():
                row.bars[-1].result = event
                is_calling = False
            case Fail() | Evicted():
                is_alive = is_calling = False
    if is_calling:
        row.bars[-1].end = last
    if is_alive:
        row.lives[-1] = (row.lives[-1][0], last)


def _target(move: Move) -> float:
    return move.end if move.recorded == move.start else move.start


# --- the shapes


class _Picture:
    """The shapes of a history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._rows = _rows(history)
        times = [event.t for event in history.events] + list(history.snapshots)
        times += [time for move in history.moved for time in (move.start, move.end)]
        self._first, self._last = min(times, default=0.0), max(times, default=0.0)
        span = self._last - self._first or 1.0
        bars = [bar for row in self._rows for bar in row.bars if bar.end > bar.call.t]
        self._plot = min(MOST_WIDTH, max([LEAST_WIDTH, *(bar.room * span / (bar.end - bar.call.t) for bar in bars)]))
        self._scale = self._plot / span
        self._foot = TOP + ROW * len(self._rows)

    def svg(self, title: str, desc: str) -> str:
        """Return the whole picture."""
        width, height = _number(LEFT + self._plot + RIGHT), _number(self._foot + BOTTOM)
        shapes = [
            _tag("title", title, id="title"),
            _tag("desc", desc, id="desc"),
            *self._axis(),
            *(shape for place, row in enumerate(self._rows) for shape in self._row(row, TOP + ROW * (place + 0.5))),
            *(self._snapshot(time) for time in self._history.snapshots),
        ]
        opening = _tag(
            "svg",
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width} {height}",
            width=width,
            height=height,
            role="img",
            aria_labelledby="title desc",
            font_family="system-ui, sans-serif",
            font_size=13,
        ).removesuffix("/>")
        return "\n".join([f"{opening}>", *shapes, "</svg>"]) + "\n"

    def _x(self, time: float) -> float:
        return LEFT + (time - self._first) * self._scale

    def _axis(self) -> Iterator[str]:
        left, right, y = self._x(self._first), self._x(self._last), self._foot + 8
        yield _path(LINE, 1, (left, y), (right, y))
        yield _path(LINE, 1, (right - 6, y - 4), (right, y), (right - 6, y + 4))
        yield _text(left, y + 17, _time(self._first), "start")
        yield _text((left + right) / 2, y + 17, "time", "middle")
        yield _text(right, y + 17, _time(self._last), "end")

    def _row(self, row: _Row, y: float) -> Iterator[str]:
        yield _text(LEFT - 18, y + 4.5, f"worker {row.worker}", "end")
        for begin, end in row.idle():
            yield _path(LINE, 2, (self._x(begin), y), (self._x(end), y))
        for bar in row.bars:
            yield self._bar(bar, y)
        for event in row.events:
            if isinstance(event, Start):
                yield self._start(event, y)
            elif isinstance(event, (Fail, Evicted)):
                yield self._end(event, y)

    def _bar(self, bar: _Bar, y: float) -> str:
        left, right = self._x(bar.call.t), self._x(bar.end)
        is_answered = isinstance(bar.result, Reply)
        ink = "#ffffff" if is_answered else TEXT
        style: dict[str, str | float] = (
            {} if is_answered else {"fill_opacity": 0.18, "stroke": CALL, "stroke_width": 1.5}
        )
        shape = _tag("rect", x=left, y=y - BAR / 2, width=max(right - left, 1.0), height=BAR, rx=5, fill=CALL, **style)
        texts = [_text(left + 8, y + 4.5, bar.request, "start", ink), _text(right - 8, y + 4.5, bar.answer, "end", ink)]
        if right - left < bar.room - 1:
            texts = []  # in a picture that would become too wide; they are in the title as well
        return _group(bar.words, shape, *texts)

    def _start(self, event: Start, y: float) -> str:
        x = self._x(event.t)
        name = [] if event.inc is None else [_text(x, y - BAR / 2 - 2, str(event.inc), "middle")]
        return _group(_words(event), _tag("circle", cx=x, cy=y, r=MARK, fill=START), *name)

    def _end(self, event: Fail | Evicted, y: float) -> str:
        x = self._x(event.t)
        mark = _failure if isinstance(event, Fail) else _eviction
        for move in self._history.moved:
            if (move.p, move.recorded) == (event.p, event.t):
                to = self._x(_target(move))
                way, limit = (12, "late") if to > x else (-12, "early")
                faint = f'<g opacity="0.45">{mark(x, y)}</g>'
                words = f"{_words(event)}, or as {limit} as {_time(_target(move))}"
                return _group(words, faint, _path(FAILURE, 1.5, (x + way, y), (to - way, y), dashed=True), mark(to, y))
        return _group(_words(event), mark(x, y))

    def _snapshot(self, time: float) -> str:
        x = self._x(time)
        return _group(f"a moment, at {_time(time)}", _path(MOMENT, 3, (x, TOP - 6), (x, self._foot + 2)))


def _failure(x: float, y: float, size: float = MARK, color: str = FAILURE) -> str:
    return "".join(_path(color, 3, (x - size, y - way), (x + size, y + way)) for way in (size, -size))


def _eviction(x: float, y: float) -> str:
    ring = _tag("circle", cx=x, cy=y, r=MARK + 1, fill="none", stroke=EVICTION, stroke_width=2)
    return ring + _failure(x, y, MARK * 0.55, EVICTION)


def _text(x: float, y: float, text: str, anchor: str, color: str = TEXT) -> str:
    if not text:
        return ""
    return _tag("text", text, x=x, y=y, text_anchor=anchor, fill=color)


def _path(color: str, width: float, *points: tuple[float, float], dashed: bool = False) -> str:
    style = {"stroke_dasharray": "4 3"} if dashed else {}
    line = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
    return _tag("polyline", points=line, fill="none", stroke=color, stroke_width=width, stroke_linecap="round", **style)


def _group(title: str, *shapes: str) -> str:
    return f"<g>{_tag('title', title)}{''.join(shapes)}</g>"


def _tag(name: str, content: str | None = None, /, **attributes: str | float) -> str:
    written = "".join(
        f' {key.replace("_", "-")}="{escape(value if isinstance(value, str) else _number(value))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}/>" if content is None else f"<{name}{written}>{escape(content)}</{name}>"
