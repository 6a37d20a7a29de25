"""The checkers are tested by engines that are wrong: each must be caught, by the checker whose promise it breaks."""

from __future__ import annotations

import pytest

from simulation.chaos import run_seed
from simulation.checkers import BrokenPromiseError, all_checkers
from simulation.mutants import MUTANTS, Mutant

SEEDS = 300


def killer(mutant: Mutant, seeds: int = SEEDS) -> tuple[int, str]:
    """The first seed under which the mutant breaks a promise, and the promise; (seeds, "") where it lives."""
    with mutant.alive():
        for seed in range(mutant.near, mutant.near + seeds):
            try:
                run_seed(seed)
            except BrokenPromiseError as broken:
                return seed, broken.promise
            except AssertionError:
                continue  # the engine's own assertions may see it too; here the checkers are tested
    return seeds, ""


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_dies(mutant: Mutant) -> None:
    seed, promise = killer(mutant)
    assert promise, f"{mutant.name} lived through {SEEDS} seeds from {mutant.near} on"
    assert promise in mutant.killers, f"seed {seed}: {mutant.name} was caught by {promise}, not by {mutant.killers}"


def test_every_promise_has_a_mutant() -> None:
    """A checker that no mutant needs is not tested."""
    promises = {type(checker).__name__ for checker in all_checkers()} | {"Progress"}
    needed = {promise for mutant in MUTANTS for promise in mutant.killers}
    assert promises == needed
