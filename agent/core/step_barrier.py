"""The step barrier: the step after which all ranks pause when a world changes and nobody was lost.

Nobody is interrupted then, so that no step is lost or repeated. It takes two phases:

1. The leader asks (`Report.barrier_request`). Each agent tells each of its workers to complete no step beyond the one
   that it is in, looks how far it has come after it was told so, and tells it again if it was too late. It answers with
   the greatest of these steps (`Report.barrier_answer`): whatever is agreed on, none of its workers has passed it.
2. The leader seals the next world with the greatest step of all answers (`Round.leave_after`), and as many more as are
   taken while it is told to all. Each rank goes on to that step, which no rank has passed and every rank can reach, and
   leaves there: for a world that is ready.

If the workers have only just entered their world and their steps are quick, their first step there is waited for.

If the barrier is called off, because the newcomer or the leader is gone, the workers are told to go on. If no worker
counts steps, or the ranks do not count alike, all leave their world at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from softrun.agent.core.local_workers import LocalWorkers
from softrun.agent.protocol.effects import Effect, LookAtStep
from softrun.agent.protocol.model import NO_REQUEST, BarrierAnswer, BarrierRequest
from softrun.agent.protocol.observations import StepSeen

SOON_S = 0.05  # a step that takes less is worth waiting for


@dataclass
class _Held:
    launch: int
    told: int | None = None
    """The step beyond which it was told not to go."""
    sure: bool = False
    tries: int = 0
    step_s: float = 0.0


class StepBarrier:
    """One node's part in the agreement: what the leader requested, and how far each worker has come."""

    def __init__(self, workers: LocalWorkers) -> None:
        self._workers = workers
        self.request = NO_REQUEST
        """What the leader has asked for."""
        self._held: dict[int, _Held] = {}

    def follow(self, request: BarrierRequest) -> list[Effect]:
        """Hold the workers as the leader asks; NO_REQUEST: it does not, or no longer."""
        effects: list[Effect] = []
        if request != self.request:
            effects += self._let_go()
            self.request = request
        if request != NO_REQUEST and not self._held and self._workers.has_entered():
            self._held = {local_rank: _Held(launch) for local_rank, launch in self._workers.at_work()}
            effects += [LookAtStep(local_rank, held.launch) for local_rank, held in self._held.items()]
        return effects

    def seen(self, seen: StepSeen) -> list[Effect]:
        """How far a worker had come after it was told."""
        held = self._held.get(seen.local_rank)
        if held is None or held.launch != seen.launch or held.sure:
            return []
        held.step_s = seen.step_s
        if seen.step is None:  # it does not count, or has yet to complete its first step: then it says when it has
            held.sure = not 0 < seen.step_s <= SOON_S
            return []
        held.sure = held.told is not None and seen.step < held.told
        if held.sure:
            return []
        # The step that it is in; the next time some more, for one whose steps are quicker than this.
        held.told = seen.step + 2**held.tries
        held.tries += 1
        return [*self._workers.hold(seen.local_rank, held.told), LookAtStep(seen.local_rank, held.launch)]

    def counts(self, local_rank: int, launch: int) -> list[Effect]:
        """A worker has completed its first step in this world."""
        held = self._held.get(local_rank)
        if held is None or held.launch != launch or (held.sure and held.told is not None):
            return []
        held.sure = False
        return [LookAtStep(local_rank, launch)]

    def answer(self) -> BarrierAnswer | None:
        """What the leader is to know, as soon as it is certain."""
        if not self._held or not all(held.sure for held in self._held.values()):
            return None
        told = [held.told for held in self._held.values() if held.told is not None]
        step_s = max(held.step_s for held in self._held.values())
        return BarrierAnswer(
            self.request, min(told, default=0), max(told, default=0), len(told) == len(self._held), step_s
        )

    def _let_go(self) -> list[Effect]:
        """Those who were not told of another world meanwhile go on in theirs."""
        waiting = [local_rank for local_rank, held in self._held.items() if held.told is not None]
        self._held = {}
        return [effect for local_rank in waiting for effect in self._workers.hold(local_rank, None)]
