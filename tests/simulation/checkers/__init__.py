"""The promises, each as a checker that looks on and raises
`BrokenPromiseError` when it sees its promise broken.

A checker knows the truth of the simulated world (who lives, what was asked of whom), not the engine's mind. It computes
what it needs by its own simple means, so that a mistake of the engine is not repeated here.
"""

from __future__ import annotations

from simulation.checkers.agents import Ending, NobodyMeetsTheReplaced, Patient
from simulation.checkers.base import BrokenPromiseError, Checker, sealed_anew
from simulation.checkers.record import (
    Converges,
    NoGhosts,
    OnceEach,
    OneHistory,
    OneWorldPerRound,
    Ranks,
    Size,
    SurvivorsFirst,
    WorkerStores,
)
from simulation.checkers.workers import (
    FinishedStaysFinished,
    FunctionsEndTogether,
    HardBeginsAllAgain,
    LeaveTogether,
    RestartsCountedOnce,
    SavedTogether,
    Sequence,
    SoftSparesTheHealthy,
    WorkIsNotBegunAgain,
)


def all_checkers() -> list[Checker]:
    return [
        OneWorldPerRound(),
        OneHistory(),
        Size(),
        Ranks(),
        Sequence(),
        SoftSparesTheHealthy(),
        RestartsCountedOnce(),
        NoGhosts(),
        NobodyMeetsTheReplaced(),
        LeaveTogether(),
        FunctionsEndTogether(),
        SavedTogether(),
        OnceEach(),
        SurvivorsFirst(),
        FinishedStaysFinished(),
        HardBeginsAllAgain(),
        WorkIsNotBegunAgain(),
        Converges(),
        Ending(),
        WorkerStores(),
        Patient(),
    ]


__all__ = ["BrokenPromiseError", "Checker", "all_checkers", "sealed_anew"]
