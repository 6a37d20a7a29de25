"""What an agent does with its own workers."""

from __future__ import annotations

from typing import Any

from simulation.mutants.mutant import Patch, mutant
from softrun.agent.core.engine import Engine
from softrun.agent.core.local_workers import LocalWorkers
from softrun.agent.core.stages import Stages
from softrun.agent.core.worker_slot import State, WorkerSlot
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.model import (
    Round,
)
from softrun.agent.rendezvous import ranks


@mutant("Sequence")
def works_without_pause() -> list[Patch]:
    right = LocalWorkers.enter

    def wrong(self: LocalWorkers, *rest: Any) -> list[do.Effect]:
        return [e for e in right(self, *rest) if not (isinstance(e, do.Tell) and e.state.value == "PAUSED")]

    return [(LocalWorkers, "enter", wrong)]


@mutant("Sequence")
def does_not_say_that_it_ends_a_worker() -> list[Patch]:
    def wrong(self: WorkerSlot, signum: int, *, stands: bool = False) -> list[do.Effect]:
        return [self.signal(signum)]

    return [(WorkerSlot, "_ask_to_end", wrong)]


@mutant("FunctionsEndTogether")
def lets_a_function_end_that_has_returned() -> list[Patch]:
    def wrong(self: LocalWorkers) -> list[do.Effect]:
        return [effect for slot in self._slots if slot.state is State.RETURNED for effect in slot.release()]

    return [(LocalWorkers, "release", wrong)]


@mutant("SoftSparesTheHealthy")
def stops_healthy_workers() -> list[Patch]:
    def wrong(self: Stages, now: float) -> None:
        self.restart(now, charged=False)

    return [(Stages, "halt", wrong)]


@mutant("Ending", "Sequence")
def leaves_workers_behind() -> list[Patch]:
    return [(LocalWorkers, "living", lambda self: False)]


@mutant("FinishedStaysFinished", "Progress")
def starts_finished_workers_again() -> list[Patch]:
    right = LocalWorkers.exited

    def wrong(self: LocalWorkers, local_rank: int, launch: int, exitcode: int) -> do.Failure | None:
        failure = right(self, local_rank, launch, exitcode)
        slot = self._slots[local_rank]
        if slot.state is State.DONE and len(self._slots) > 1:
            self._slots[local_rank] = slot.renewed()
        return failure

    return [(LocalWorkers, "exited", wrong)]


@mutant("RestartsCountedOnce")
def charges_failures_that_a_loss_explains() -> list[Patch]:
    return [(Stages, "_is_excused", lambda self: False)]


@mutant("RestartsCountedOnce")
def forgives_every_failure() -> list[Patch]:
    return [(Stages, "_is_excused", lambda self: True)]


@mutant("Ranks")
def gives_workers_the_ranks_of_the_last_world() -> list[Patch]:
    right = ranks.places

    def wrong(round_: Round, *rest: Any) -> Any:
        return {
            worker: info.model_copy(update={"rank": max(0, info.rank - 1)})
            for worker, info in right(round_, *rest).items()
        }

    return [(ranks, "places", wrong)]


@mutant("Patient")
def asks_for_a_tick_at_once() -> list[Patch]:
    return [(Engine, "deadline", lambda self: None if self.stage.value == "ENDED" else self._now + 1e-3)]
