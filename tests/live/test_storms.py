"""Storms of a few agents' calls, each judged; and mutants of the protocol, each of which the checker must reject."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from live.storm import Storm
from softrun.agent.live.coordinator import Coordinator
from softrun.agent.live.epoch import Epoch
from softrun.agent.live.live_calls import LiveCalls
from softrun.agent.protocol.effects import Effect
from softrun.agent.protocol.live import Calls, Verdict
from softrun.agent.rendezvous import promises
from softrun.runtime.calls import Call, Way
from softrun.testing import check

CHUNKS = 4
SEEDS = 600
KILLED_WITHIN = 1500

Patch = tuple[Any, str, Any]


@pytest.mark.parametrize("chunk", [pytest.param(n, marks=() if n < 2 else pytest.mark.slow) for n in range(CHUNKS)])
def test_what_workers_see_in_a_storm_is_right(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        verdict = check(Storm(seed).run())
        assert verdict, f"seed {seed}: {verdict}"


def asks_nobody_to_promise() -> list[Patch]:
    """A leader dies after half of its broadcast, and nobody says what has arrived."""
    return [(promises, "owing", lambda round_, reports, dead, refused, leader: {leader})]


def asks_not_even_itself() -> list[Patch]:
    def owing(round_: Any, reports: Any, dead: Any, refused: Any, leader: str) -> set[str]:
        asked = right(round_, reports, dead, refused, leader)
        return asked - {leader} if asked != {leader} else set()

    right = promises.owing
    return [(promises, "owing", owing)]


def breaks_its_promise() -> list[Patch]:
    return [(LiveCalls, "promise", lambda self, number: None)]


def forgets_what_was_delivered() -> list[Patch]:
    return [(promises, "verdicts", lambda round_, reports: ())]


def takes_an_earlier_verdict() -> list[Patch]:
    def verdicts(round_: Any, reports: Any) -> tuple[Verdict, ...]:
        return tuple(verdict._replace(turn=verdict.turn - 1) for verdict in right(round_, reports))

    right = promises.verdicts
    return [(promises, "verdicts", verdicts)]


def loses_a_vote() -> list[Patch]:
    def called(self: LiveCalls, local_rank: int, launch: int, call: Call, now: float) -> list[Effect]:
        return right(self, local_rank, launch, call._replace(fault=None), now)

    right = LiveCalls.called
    return [(LiveCalls, "called", called)]


def counts_without_the_epoch() -> list[Patch]:
    """No incarnation in the key: a call of before the change counts after it."""

    def end(self: LiveCalls, epoch: Epoch, *after: Any) -> list[Effect]:
        kept = {who: call._replace(epoch=epoch.number + 1) for who, call in self._open.items()}
        self._open.clear()
        effects = right(self, epoch, *after)
        self._open.update(kept)
        return effects

    right = LiveCalls._end
    return [(LiveCalls, "_end", end)]


def splits_its_answers() -> list[Patch]:
    """Each node is answered as soon as its own workers have called."""

    def decide(self: Coordinator, scope: Any = None) -> Iterator[tuple[str, Verdict]]:
        for each, waiting in [*self._waiting.items()]:
            for node in [*waiting]:
                verdict = self._verdict(each, {node: waiting[node]})
                self.decided[each] = verdict._replace(turn=waiting[node].turn)
                yield node, self.decided[each]
            self._waiting.pop(each)

    return [(Coordinator, "decide", decide)]


def keeps_the_world_after_an_error() -> list[Patch]:
    """The worker goes on in the block that it takes from before, without a call, and the coordinator does not look."""

    def called(self: LiveCalls, local_rank: int, launch: int, call: Call, now: float) -> list[Effect]:
        if call.way is Way.EXIT and call.epoch not in self._epochs and self._epochs:
            call = call._replace(epoch=max(self._epochs))
        return right(self, local_rank, launch, call, now)

    right = LiveCalls.called
    return [(LiveCalls, "called", called), (Coordinator, "_mistake", lambda self, made, scope: "")]


def does_not_wait_for_all() -> list[Patch]:
    def needed(self: Epoch, scope: Any) -> dict[str, frozenset[int]]:
        return dict([*right(self, scope).items()][:2])

    right = Epoch.needed
    return [(Epoch, "needed", needed)]


def forgives_those_that_are_gone() -> list[Patch]:
    def verdict(self: Coordinator, *gathered: Any) -> Verdict:
        decided = right(self, *gathered)
        return decided._replace(ok=True) if decided.ok is False else decided

    right = Coordinator._verdict
    return [(Coordinator, "_verdict", verdict)]


def takes_late_messages_for_new_ones() -> list[Patch]:
    def hear(self: Coordinator, node: str, calls: Calls) -> Iterator[tuple[str, Verdict]]:
        last = self.decided.get(calls.scope)
        if last is not None and calls.made:
            calls = calls._replace(turn=last.turn + 1)
        yield from right(self, node, calls)

    right = Coordinator.hear
    return [(Coordinator, "hear", hear)]


def takes_late_verdicts_for_new_ones() -> list[Patch]:
    def answer(self: LiveCalls, epoch: Epoch, verdict: Verdict) -> list[Effect]:
        return right(self, epoch, verdict._replace(turn=epoch.awaited(verdict.scope)))

    right = LiveCalls._answer
    return [(LiveCalls, "_answer", answer)]


def decides_when_it_may_have_been_left_behind() -> list[Patch]:
    return [(LiveCalls, "be_sure", lambda self, until, now: [])]


MUTANTS: tuple[Callable[[], list[Patch]], ...] = (
    asks_nobody_to_promise,
    asks_not_even_itself,
    breaks_its_promise,
    forgets_what_was_delivered,
    takes_an_earlier_verdict,
    loses_a_vote,
    counts_without_the_epoch,
    splits_its_answers,
    keeps_the_world_after_an_error,
    does_not_wait_for_all,
    forgives_those_that_are_gone,
    takes_late_messages_for_new_ones,
    takes_late_verdicts_for_new_ones,
    decides_when_it_may_have_been_left_behind,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_of_the_protocol_is_rejected(
    mutant: Callable[[], list[Patch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for patch in mutant():
        monkeypatch.setattr(*patch)
    for seed in range(KILLED_WITHIN):
        try:
            if not check(Storm(seed).run()):
                return
        except AssertionError:
            continue  # what the storm itself finds strange is not the checker's merit
    pytest.fail(f"{mutant.__name__} lived through {KILLED_WITHIN} storms")
