"""Whether what the workers saw can have come from right decisions: all ways in which it can, followed side by side.

A state is one way so far: who is dead although its failure is recorded later, or not at all; which open calls are
decided; and, if blocks are judged, which block each worker is in. What all states have in common is the scene.

    events of the history   start  call   call   …    reply  …
    decisions                             ^ any number of them, between any two events

A decision is only taken for the sake of an answer in the history, which is known beforehand. One that no answer shows
would take calls and end lives for nothing. To keep the states few:

- A failure that may be placed anywhere is placed where a decision first needs it.
- A decision waits for as long as nothing makes it impossible. What can: the end of a call, and a start, which ends the
  time in which a worker was dead. So before these, and only then, decisions that concern this worker branch: the state
  goes on with each of them, and without.
- A decision that needs no further death, and takes only calls with this very answer, excludes nothing that is
  possible otherwise. It is taken at once, and does not branch.

If a reply comes whose call is decided in no state, there was no right way to give this answer.
"""

from __future__ import annotations

from typing import NamedTuple

from softrun.testing.history import HistoryError
from softrun.testing.scene import Decision, Scene, bits_of
from softrun.testing.timeline import Call, Step, Timeline

MOST_STATES = 1000
"""How many states may be open at once. Real services leave fewer than ten."""
Blocks = tuple[frozenset[int], ...]
_NO_BLOCK: frozenset[int] = frozenset()


class AmbiguousError(HistoryError):
    """A history that more ways can explain than are worth following."""


class State(NamedTuple):
    """One way in which the history can have come about so far. Workers are bits."""

    dead: int
    decided: int
    blocks: Blocks
    """By worker: the calls of the decision that began its block; none if it is in no block, or in one that has failed
    already."""

    def block_of(self, bit: int) -> frozenset[int]:
        """Return the calls of the decision that began a worker's block."""
        return self.blocks[bit.bit_length() - 1]


class Refusal(NamedTuple):
    """A decision that was possible but for what a state had decided before."""

    decision: Decision
    state: State


class Search:
    """The states, from event to event."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._scene = Scene(timeline)
        blocks = (_NO_BLOCK,) * len(timeline.workers) if timeline.is_atomic else ()
        self._states = {State(0, 0, blocks)}
        self._refusals: dict[int, Refusal] = {}  # the last one, by the bit of a worker whose open call it was for

    def run(self) -> tuple[Step, Refusal | None] | None:
        """Return the first reply that no state explains, and a decision that would have. None: all are explained."""
        for step in self._timeline.steps:
            if self._ends_something(step):
                self._branch(step)
            if step.event.e == "reply":
                self._states = {state for state in self._states if state.decided & step.bit}
                if not self._states:
                    return step, self._refusals.get(step.bit)
            self._scene.advance(step)
            self._note(step)
        return None

    def _ends_something(self, step: Step) -> bool:
        kind = step.event.e
        return kind in ("start", "reply", "error") or (kind in ("fail", "evicted") and self._timeline.pins_failures)

    def _branch(self, step: Step) -> None:
        """Take the decisions that this step makes impossible, or leave them."""
        undecided = 0
        for state in self._states:
            undecided |= self._scene.answered & ~state.decided
        # Where decisions take calls, a reply makes none impossible but its own: nobody else can have its call.
        settled = step.bit if step.event.e == "reply" and self._timeline.is_exclusive else 0
        if undecided & settled == settled and (decisions := self._scene.decisions(undecided, step.bit)):
            self._states = self._reach(decisions, settled, step)

    def _reach(self, decisions: list[Decision], settled: int, step: Step) -> set[State]:
        """Return the states that these decisions lead to. One that has decided the call of `settled` is final."""
        found, seen, todo = set[State](), set(self._states), list(self._states)
        while todo:
            state = todo.pop()
            is_final = bool(state.decided & settled)
            following, is_forced = ([], False) if is_final else self._following(state, decisions)
            if not is_forced:
                found.add(state)
            todo.extend(new for new in following if new not in seen)
            seen.update(following)
            if len(found) > MOST_STATES:
                raise AmbiguousError(
                    f"more than {MOST_STATES} ways could have led to the {step.event.e} of worker {step.event.p!r} at "
                    f"t={step.event.t:.12g}: check a shorter part of the history, or record every answer"
                )
        return found

    def _following(self, state: State, decisions: list[Decision]) -> tuple[list[State], bool]:
        """Return the states that one decision leads to, and whether it has to be taken: then there is only one."""
        following = []
        for decision in decisions:
            dying = decision.others & ~state.dead
            if self._allows(state, decision):
                new = State(state.dead | dying, state.decided | decision.takes, _enter(state.blocks, decision))
                if not dying and not decision.silent:
                    return [new], True
                following.append(new)
            else:
                refused = decision.takes & ~state.decided & self._scene.answered
                self._refusals.update((bit, Refusal(decision, state)) for bit in bits_of(refused))
        return following, False

    def _allows(self, state: State, decision: Decision) -> bool:
        """Whether its members and their calls are there for it, and all are told the outcome of their block."""
        spent = state.decided & decision.takes
        return not (
            state.dead & decision.members
            or spent == decision.takes
            or (spent and self._timeline.is_exclusive)
            or any(is_told_wrong(call, state, decision) for call in decision.calls)
        )

    def _note(self, step: Step) -> None:
        """Carry all states past an event."""
        kept = ~step.bit
        if step.event.e == "start":
            self._states = {
                State(state.dead & kept, state.decided & kept, self._without(state.blocks, step.bit))
                for state in self._states
            }
        elif step.event.e == "call":
            self._states = {state._replace(decided=state.decided & kept) for state in self._states}
            self._refusals.pop(step.bit, None)

    def _without(self, blocks: Blocks, bit: int) -> Blocks:
        """Return the blocks without those that have failed because the worker of `bit` starts again."""
        steps = self._timeline.steps
        return tuple(_NO_BLOCK if any(steps[call].bit == bit for call in block) else block for block in blocks)


def _enter(blocks: Blocks, decision: Decision) -> Blocks:
    """Return the blocks when the members of a decision are in the one that it begins."""
    if not decision.calls:
        return blocks
    return tuple(decision.block if decision.members >> place & 1 else block for place, block in enumerate(blocks))


def outcome(call: Call, state: State, decision: Decision) -> bool | None:
    """Return what a decision makes of the block that a call of it ends; None: it ends none."""
    if call.previous is None:
        return None
    block = state.block_of(call.bit)
    return bool(block) and block <= decision.agreed


def is_told_wrong(call: Call, state: State, decision: Decision) -> bool:
    """Whether the worker is told another outcome than this decision has.

    One that is told of a failure by an error may not know of a success that nobody has lived to act upon.
    """
    if call.told is None or call.told is outcome(call, state, decision):
        return False
    return call.answer is not None or any(other.lives_on and other.told for other in decision.calls)
