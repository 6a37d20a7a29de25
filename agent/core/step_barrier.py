"""The step barrier: the step after which all ranks pause when a world changes and nobody was lost.

Nobody is interrupted then, so that no step is lost or repeated. It takes two phases:

1. The leader asks (`Report.barrier_request`). Each agent tells each of its workers to stop after the step that it is
   in, checks how far the worker had come by then, and tells it again if that was too late. The agent answers with the
   greatest of these steps (`Report.barrier_answer`): none of its workers goes beyond it.
2. The leader seals the next world with the greatest step of all answers (`Round.leave_after`), plus the steps that the
   workers take while the news spreads. No rank has passed that step and every rank can reach it, so each works on to it
   and leaves there, for a world that is ready.

If the workers have only just entered their world and their steps are quick, the agent waits for their first step, but
not if they say that they take none (`World.wait_for_change`).

If the barrier is called off, because the newcomer or the leader is gone, the workers are told to go on. If no worker
counts steps, or the ranks count differently, all leave their world at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from softrun.agent.core.local_workers import LocalWorkers
from softrun.agent.protocol.effects import Effect, LookAtStep
from softrun.agent.protocol.model import NO_REQUEST, BarrierAnswer, BarrierRequest
from softrun.agent.protocol.observations import StepSeen

SOON_S = 0.05  # the agent waits for a step that takes less


@dataclass
class _Held:
    launch: int
    told: int | None = None
    """The step after which it was told to stop."""
    sure: bool = False
    tries: int = 0
    step_s: float = 0.0


class StepBarrier:
    """One node's part in the agreement: what the leader has asked for, and how far each worker has come."""

    def __init__(self, workers: LocalWorkers) -> None:
        self._workers = workers
        self.request = NO_REQUEST
        """What the leader has asked for."""
        self._held: dict[int, _Held] = {}

    def follow(self, request: BarrierRequest) -> list[Effect]:
        """Hold the workers as the leader asks; NO_REQUEST lets them go on."""
        effects: list[Effect] = []
        if request != self.request:
            effects += self._let_go()
            self.request = request
        if request != NO_REQUEST and not self._held and self._workers.has_entered():
            self._held = {local_rank: _Held(launch) for local_rank, launch in self._workers.at_work()}
            effects += [LookAtStep(local_rank, held.launch) for local_rank, held in self._held.items()]
        return effects

    def seen(self, seen: StepSeen) -> list[Effect]:
        """A worker's last step was read, after it was told where to stop."""
        held = self._held.get(seen.local_rank)
        if held is None or held.launch != seen.launch or held.sure:
            return []
        held.step_s = seen.step_s
        if seen.step is None:  # it counts no steps, or has yet to complete its first and will say when it has
            held.sure = not 0 < seen.step_s <= SOON_S
            return []
        held.sure = held.told is not None and seen.step < held.told
        if held.sure:
            return []
        # The step that it is in, and more of them with each try: its steps may be quicker than this exchange.
        held.told = seen.step + 2**held.tries
        held.tries += 1
        return [*self._workers.hold(seen.local_rank, held.told), LookAtStep(seen.local_rank, held.launch)]

    def look_again(self, local_rank: int, launch: int) -> list[Effect]:
        """A worker has completed its first step in this world, or takes none in it."""
        held = self._held.get(local_rank)
        if held is None or held.launch != launch or (held.sure and held.told is not None):
            return []
        held.sure = False
        return [LookAtStep(local_rank, launch)]

    def answer(self) -> BarrierAnswer | None:
        """The answer for the leader, once all workers are held; None before."""
        if not self._held or not all(held.sure for held in self._held.values()):
            return None
        told = [held.told for held in self._held.values() if held.told is not None]
        step_s = max(held.step_s for held in self._held.values())
        return BarrierAnswer(
            self.request, min(told, default=0), max(told, default=0), len(told) == len(self._held), step_s
        )

    def _let_go(self) -> list[Effect]:
        """Tell the held workers to go on, unless they were told of another world."""
        waiting = [local_rank for local_rank, held in self._held.items() if held.told is not None]
        self._held = {}
        return [effect for local_rank in waiting for effect in self._workers.hold(local_rank, None)]
