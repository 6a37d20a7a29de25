"""The checkers are tested by engines that are wrong: each must be caught, by the checker whose promise it breaks.

With another engine a seed is another run. So each mutant begins with the seed that has killed it last (`near.json`);
`SOFTRUN_REWRITE=1 pytest tests/simulation/test_mutants.py` looks further, and writes them anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.chaos import run_seed
from simulation.checkers import BrokenPromiseError, all_checkers
from simulation.mutants import MUTANTS, NEAR, RARE_MUTANTS, Mutant, Patch
from softrun.agent.errors import SoftrunError

SEEDS = 300
REWRITES = bool(os.environ.get("SOFTRUN_REWRITE"))


def killer(mutant: Mutant) -> tuple[int, str]:
    """The first seed from `near` on under which the mutant breaks one of its promises, or any; -1 if it lives."""
    near = mutant.near
    seeds = [*range(near, near + SEEDS), *(range(10 * SEEDS) if REWRITES else ())]
    other = -1, ""
    with mutant.alive():
        for seed in seeds:
            try:
                run_seed(seed)
            except BrokenPromiseError as broken:
                if broken.promise in mutant.killers:
                    return seed, broken.promise
                other = seed, broken.promise
                if not REWRITES:
                    break
            except (AssertionError, SoftrunError):
                continue  # the engine's own checks may see it too; here the checkers are tested
    return other


def write(mutant: Mutant, seed: int) -> None:
    with NEAR.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        seeds = json.load(file) | {mutant.name: seed}
        file.seek(0)
        file.truncate()
        file.write(json.dumps(dict(sorted(seeds.items())), indent=2) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_dies(mutant: Mutant) -> None:
    seed, promise = killer(mutant)
    assert promise, f"{mutant.name} lived through {SEEDS} seeds from {mutant.near} on"
    assert promise in mutant.killers, f"seed {seed}: {mutant.name} was caught by {promise}, not by {mutant.killers}"
    if REWRITES:
        write(mutant, seed)


@pytest.mark.parametrize("patches", RARE_MUTANTS, ids=lambda patches: patches.__name__)
def test_mutant_that_seeds_seldom_show_dies_by_a_test(patches: Callable[[], list[Patch]]) -> None:
    path, _, name = RARE_MUTANTS[patches].partition("::")
    test = runpy.run_path(str(Path(__file__).parents[1] / "agent" / path))[name]
    test()
    with Mutant(patches.__name__, patches, ()).alive(), pytest.raises(AssertionError):
        test()


def test_every_promise_has_a_mutant() -> None:
    """A checker that no mutant needs is not tested."""
    promises = {type(checker).__name__ for checker in all_checkers()} | {"Progress"}
    needed = {promise for mutant in MUTANTS for promise in mutant.killers}
    assert promises == needed
