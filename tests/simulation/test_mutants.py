"""The checkers are tested by agents that are wrong: each must be caught, by the checker whose promise it breaks.

Each begins with the seed that has killed it last (`near.json`); `SOFTRUN_REWRITE=1 pytest tests/simulation` looks
further, and writes them anew.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from simulation.chaos import run_seed
from simulation.checkers import all_checkers
from simulation.mutants import those
from simulation.mutants.mutant import Mutant

SEEDS = 300


@pytest.mark.slow
@pytest.mark.parametrize("mutant", those("in a storm"), ids=lambda mutant: mutant.name)
def test_mutant_dies(mutant: Mutant) -> None:
    mutant.must_die(run_seed, SEEDS)


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
