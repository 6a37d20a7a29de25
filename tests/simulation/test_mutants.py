"""The checkers are tested by agents that are wrong: each must be caught, by the checker whose promise it breaks.

With another engine a seed is another run. So each mutant begins with the seed that has killed it last (`near.json`);
`SOFTRUN_REWRITE=1 pytest tests/simulation/test_mutants.py` looks further, and writes them anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from simulation.chaos import run_seed
from simulation.checkers import BrokenPromiseError, all_checkers
from simulation.mutants import those
from simulation.mutants.mutant import NEAR, Mutant
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
@pytest.mark.parametrize("mutant", those("in a storm"), ids=lambda mutant: mutant.name)
def test_mutant_dies(mutant: Mutant) -> None:
    seed, promise = killer(mutant)
    assert promise, f"{mutant.name} lived through {SEEDS} seeds from {mutant.near} on"
    assert promise in mutant.killers, f"seed {seed}: {mutant.name} was caught by {promise}, not by {mutant.killers}"
    if REWRITES:
        write(mutant, seed)


def cases(path: str) -> list[Callable[[], None]]:
    """The calls of a test in `tests/agent`, one for each of its parameters if it has one."""
    file, _, name = path.partition("::")
    test = runpy.run_path(str(Path(__file__).parents[1] / "agent" / file))[name]
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            return [partial(test, **{mark.args[0]: value}) for value in mark.args[1]]
    return [test]


def fails(test: Callable[[], None]) -> bool:
    try:
        test()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("mutant", those("none"), ids=lambda mutant: mutant.name)
def test_mutant_that_seeds_seldom_show_dies_by_a_test(mutant: Mutant) -> None:
    for case in cases(mutant.test):
        case()
    with mutant.alive():
        assert any(fails(case) for case in cases(mutant.test))


def test_every_promise_has_a_mutant() -> None:
    """A checker that no mutant needs is not tested."""
    promises = {type(checker).__name__ for checker in all_checkers()} | {"Progress"}
    needed = {promise for mutant in those("in a storm") for promise in mutant.killers}
    assert promises == needed
