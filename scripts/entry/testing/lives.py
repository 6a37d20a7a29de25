"""Completes what trainers have recorded (`softrun.testing.record`): a process does not know all about its own lives.

- **Its incarnation** it learns with its first answer. One that had none has the incarnation that answers of others
  name.
- **That it was evicted** it may learn late, or from an answer that names it in another incarnation: there a life has
  ended before that call, and another has begun.
- **That it begins to be waited for.** A newcomer calls as soon as it can, and waits while those that are there complete
  the step that they are in. A life counts from the first decision on that takes a call of it; what it has called in
  vain before is left out.
- **That it was left out and came back**, in its incarnation, as a worker does that was stuck: its next life has a name
  of its own. If it was stuck between two of its blocks, nothing has told it; a world between its own ones does, in
  which others have decided without it.
- **That it has ended.** Nobody reads a recording before its run is over, so each life has ended by then, with or
  without a recorded failure. A failure may be placed anywhere behind the worker's last event, in every mode but
  `basic`.
- **That it was let go.** A node that leaves on request is left out as soon as its last step is decided, and its workers
  may learn of that decision after the others have gone on. So one that ended with all its calls answered counts as
  evicted: nothing is wrong if the receipt of its last answer came late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from softrun.testing.history import Call, Error, Event, Evicted, Fail, Incarnation, Reply, Start, Worker

WORLD = 10**6
"""More than a world has decisions: the round of an answer is its world's number times this, plus its turn there."""


@dataclass
class _Made:
    """A call, and how it ended."""

    call: Call
    end: Reply | Error | Evicted | None = None

    @property
    def ends(self) -> float:
        return self.end.t if self.end is not None else float("inf")


@dataclass
class _Life:
    """A life of a worker, from its first call on."""

    worker: Worker
    inc: Incarnation | None = None
    calls: list[_Made] = field(default_factory=list)
    end: Fail | Evicted | None = None

    @property
    def begins(self) -> float:
        return self.calls[0].call.t

    def end_of_the_run(self, t: float) -> Fail | Evicted:
        """How it has ended, if nobody has recorded it."""
        was_let_go = isinstance(self.calls[-1].end, Reply)
        return Evicted(t=t, p=self.worker) if was_let_go else Fail(t=t, p=self.worker)

    def events(self) -> Iterator[Event]:
        yield Start(t=self.begins, p=self.worker, inc=self.inc)
        for made in self.calls:
            yield made.call
            if isinstance(made.end, (Reply, Error)):
                yield made.end
        if self.end is not None:
            yield self.end


def completed(trainers: Sequence[Sequence[Event]], others: Sequence[Event]) -> list[Event]:
    """Return the events of a whole recording. `trainers`: those of each trainer's file; `others`: all other events."""
    lives = sorted((life for events in trainers for life in _lives(events)), key=lambda life: life.begins)
    replies = [(made.call, made.end) for life in lives for made in life.calls if isinstance(made.end, Reply)]
    replies.sort(key=lambda answered: answered[1].t)
    worlds: defaultdict[int, set[Worker]] = defaultdict(set)
    for call, reply in replies:
        if call.scope is None and reply.round is not None:
            worlds[reply.round // WORLD].update(reply.live)
    lives = [part for life in lives for part in _parted(life, worlds)]
    _find_incarnations(lives, [reply for _, reply in replies])
    lives = [life for life in lives if _begin_with_a_decision(life, replies)]
    _tell_apart(lives)
    last = max((event.t for life in lives for event in life.events()), default=0.0)
    failures = [event for event in others if isinstance(event, Fail)]
    recorded = {life.worker for life in lives}
    for worker in recorded:
        own = [life for life in lives if life.worker == worker]
        for number, life in enumerate(own):
            following = own[number + 1].begins if number + 1 < len(own) else float("inf")
            ends = [event for event in failures if event.p == worker and life.begins <= event.t < following]
            if life.end is None and following == float("inf"):
                life.end = ends[0] if ends else life.end_of_the_run(max(last, life.begins))
            elif life.end is None and ends:
                life.end = ends[0]
    rest = [event for event in others if not isinstance(event, Fail) or event.p not in recorded]
    return [*rest, *(event for life in lives for event in life.events())]


def _lives(events: Sequence[Event]) -> Iterator[_Life]:
    """Cut what a process has seen into lives, each with a call or more."""
    life: _Life | None = None
    for event in events:
        match event:
            case Call():
                life = life if life is not None else _Life(event.p)
                life.calls.append(_Made(event))
            case Reply() if life is not None:
                made = life.calls[-1]
                made.end = event
                inc = (event.incs or {}).get(str(event.p))
                if life.inc not in (None, inc):  # its node was taken for dead, and this call is of its next life
                    life.calls.pop()
                    life.end = Evicted(t=made.call.t, p=event.p)
                    yield life
                    life = _Life(event.p, calls=[made])
                life.inc = inc
            case Error() if life is not None:
                life.calls[-1].end = event
            case Evicted() if life is not None:
                life.calls[-1].end = life.calls[-1].end or event
                life.end = event
                yield life
                life = None
            case _:
                pass
    if life is not None:
        yield life


def _parted(life: _Life, worlds: Mapping[int, set[Worker]]) -> Iterator[_Life]:
    """Cut a life at which others have decided without it, in a world between those of two of its answers."""
    last: int | None = None
    after = 0  # its first call behind the last answer
    for number, made in enumerate(life.calls):
        if not isinstance(made.end, Reply) or made.end.round is None:
            continue
        world = made.end.round // WORLD
        if last is not None and any(
            life.worker not in worlds.get(each, {life.worker}) for each in range(last + 1, world)
        ):
            cut = min(after + 1, number)  # a call in vain may have been of either life
            end = Evicted(t=life.calls[cut].call.t, p=life.worker)
            yield _Life(life.worker, life.inc, life.calls[:cut], end)
            yield from _parted(_Life(life.worker, life.inc, life.calls[cut:], life.end), worlds)
            return
        last, after = world, number + 1
    yield life


def _find_incarnations(lives: Sequence[_Life], replies: Sequence[Reply]) -> None:
    """Name those that had no answer: by what others were answered while they called, or by a name of their own."""
    known = {(life.worker, life.inc) for life in lives}
    for reply in replies:
        for worker in reply.live:
            inc = (reply.incs or {}).get(str(worker))
            if inc is None or (worker, inc) in known:
                continue
            nameless = [life for life in lives if life.worker == worker and life.inc is None and life.begins < reply.t]
            if nameless:
                nameless[-1].inc = inc
                known.add((worker, inc))
    for number, life in enumerate(lives):
        if life.inc is None:
            life.inc = f"unnamed {number}"


def _tell_apart(lives: Sequence[_Life]) -> None:
    """Give a life that has the incarnation of an earlier one a name of its own, in all answers from then on."""
    known: set[tuple[Worker, Incarnation | None]] = set()
    for number, life in enumerate(lives):
        if (life.worker, life.inc) in known:
            first = min((end.round or 0 for made in life.calls if isinstance(end := made.end, Reply)), default=0)
            old, life.inc = life.inc, f"{life.inc} again {number}"
            for made in (made for other in lives for made in other.calls):
                incs = made.end.incs if isinstance(made.end, Reply) and (made.end.round or 0) >= first else None
                if isinstance(made.end, Reply) and incs is not None and incs.get(str(life.worker)) == old:
                    renamed = {**incs, str(life.worker): life.inc}
                    made.end = made.end.model_copy(update={"incs": renamed})
        known.add((life.worker, life.inc))


def _begin_with_a_decision(life: _Life, replies: Sequence[tuple[Call, Reply]]) -> bool:
    """Leave out what no decision has taken at a life's begin; returns whether anything is left.

    The first call that one has taken begins when all others that it has taken had begun, and not before.
    """
    naming = [
        (call, reply)
        for call, reply in replies
        if life.worker in reply.live and (reply.incs or {}).get(str(life.worker)) == life.inc
    ]
    while life.calls:
        first = life.calls[0]
        mine = [(call, reply) for call, reply in naming if call.t < first.ends and first.call.t < reply.t]
        if mine:
            decision = first.end.round if isinstance(first.end, Reply) else mine[0][1].round
            begins = max(call.t for call, reply in mine if reply.round == decision)
            first.call = first.call.model_copy(update={"t": max(first.call.t, begins)})
            return True
        life.calls.pop(0)
    return False
