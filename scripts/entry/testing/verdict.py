"""What the checker answers, and how it says why."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from softrun.testing.history import Worker
from softrun.testing.scene import Obstacle, Scene
from softrun.testing.search import Refusal, is_told_wrong, outcome
from softrun.testing.timeline import Call, Mode, Step, Timeline


@dataclass(frozen=True)
class Verdict:
    """Whether a history is valid; it is true if so. If not, `str` says in one line what is wrong.

    That is the first answer that cannot be explained together with all those before it. The fault may be in one of
    these: of two answers that contradict each other, the later one is named.
    """

    mode: Mode
    valid: bool
    worker: Worker | None = None
    """The worker that got the answer."""
    answer: tuple[Worker, ...] = ()
    t: float | None = None
    """When it got the answer."""
    why: str = ""

    def __bool__(self) -> bool:
        return self.valid

    def __str__(self) -> str:
        if self.valid:
            return f"valid ({self.mode})"
        got = f"{{{', '.join(map(repr, self.answer))}}}"
        return f"not valid ({self.mode}): worker {self.worker!r} got {got} at t={self.t:.12g}, but {self.why}"


def verdict_of(timeline: Timeline, found: tuple[Step, Refusal | None] | None) -> Verdict:
    """Say what the search has found."""
    if found is None:
        return Verdict(timeline.mode, valid=True)
    step, refusal = found
    call = step.call
    if call is None:
        raise AssertionError("a reply without a call")
    why = _obstructed(timeline, call, step) or _refused(timeline, refusal)
    return Verdict(timeline.mode, False, step.event.p, call.answered.event.live, step.event.t, why)


@dataclass
class _Span:
    """Moments with the same obstacles."""

    obstacles: list[Obstacle]
    begins: float
    ends: float


def _obstructed(timeline: Timeline, call: Call, reply: Step) -> str:
    """Say what is in the way of an answer at its best moment; nothing if there is a moment at which nothing is."""
    spans: list[_Span] = []
    scene = Scene(timeline)
    for step, following in pairwise(timeline.steps[: reply.number + 1]):
        scene.advance(step)
        if step.number >= call.number:
            obstacles = list(scene.obstacles(call))
            if spans and spans[-1].obstacles == obstacles:
                spans[-1].ends = following.event.t
            else:
                spans.append(_Span(obstacles, step.event.t, following.event.t))
    best = min(reversed(spans), key=lambda span: len(span.obstacles))
    if not best.obstacles:
        return ""
    at_best = "all the time" if len(spans) == 1 else f"at best, from t={best.begins:.12g} to t={best.ends:.12g},"
    return f"{at_best} {' and '.join(f'{_names(timeline, bit)} {what}' for bit, what in best.obstacles)}"


def _refused(timeline: Timeline, refusal: Refusal | None) -> str:
    """Say what earlier decisions have left in the way of an answer."""
    if refusal is None:
        return "earlier answers leave no moment for it"
    decision, state = refusal
    if dead := decision.members & state.dead:
        return f"{_names(timeline, dead)} must be dead by then, because an earlier answer leaves it out"
    if timeline.is_exclusive and (taken := decision.takes & state.decided):
        return f"the call of {_names(timeline, taken)} belongs to an earlier decision"
    for member in decision.calls:
        if is_told_wrong(member, state, decision):
            return _mistold(timeline, member, refusal)
    raise AssertionError("a decision was refused that is allowed")


def _mistold(timeline: Timeline, call: Call, refusal: Refusal) -> str:
    """Say why a call is told a wrong outcome of the block that it ends."""
    decision, state = refusal
    right = outcome(call, state, decision)
    told = f"{_names(timeline, call.bit)} is told ok={call.told} at t={call.ends_at:.12g}, and"
    if right is None:
        return f"{told} its call ends no block"
    if right:
        return f"{told} every member of its block is here and agrees"
    here = {member.previous.number: member for member in decision.calls if member.previous is not None}
    ended = [here.get(number) for number in state.block_of(call.bit)]
    if None in ended or not ended:
        return f"{told} not every member of its block is here with its next call"
    disagreeing = sum(member.bit for member in ended if member is not None and not member.agrees)
    return f"{told} the block has failed on {_names(timeline, disagreeing)}"


def _names(timeline: Timeline, mask: int) -> str:
    names = [repr(worker) for worker in timeline.names(mask)]
    return f"worker{'s' if len(names) > 1 else ''} {', '.join(names)}"
