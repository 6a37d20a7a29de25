"""The agent with one thing wrong, which must be caught by a checker, or the checkers are not worth their name."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from simulation.checkers import BrokenPromiseError
from softrun.agent.errors import SoftrunError

Patch = tuple[object, str, Any]
Job = Literal[
    "in a storm",
    "torn in two",
    "with a witness",
    "with several endpoints",
    "in every order of events",
    "agreed on",
    "agreed on with witnesses",
    "of four",
    "where nothing happens",
    "whose nodes finish and go",
    "of any ending",
    "none",
]
NEAR = Path(__file__).with_name("near.json")
REWRITES = bool(os.environ.get("SOFTRUN_REWRITE"))
FURTHER = 10  # times as many seeds, if they are written anew


@dataclass(frozen=True)
class Mutant:
    """Some functions to patch; the name says what they break.

    `job`: in which kind of job it dies, and `killers` are the promises whose checkers may be the first to see it. With
    "none" it is too rare for a simulation, if that shows it at all, and dies by the `test` in `tests/agent`.
    """

    name: str
    patches: Callable[[], list[Patch]]
    killers: tuple[str, ...]
    job: Job
    test: str

    @property
    def near(self) -> int:
        """A seed to begin with, to save time: the last one that has killed it."""
        return int(json.loads(NEAR.read_text()).get(self.name, 0))

    def must_die(self, run: Callable[[int], object], most: int) -> None:
        """Run so many seeds at most until the right promise is broken. Raises AssertionError if none does it.

        With another engine a seed is another run. With `SOFTRUN_REWRITE=1` it looks further, and writes down which seed
        it was.
        """
        promises: set[str] = set()
        near = self.near
        with self.alive():
            for seed in (*range(near, near + most), *(range(FURTHER * most) if REWRITES else ())):
                try:
                    run(seed)
                except BrokenPromiseError as broken:
                    promises.add(broken.promise)
                    if broken.promise in self.killers:
                        self._write(seed)
                        return
                except (AssertionError, SoftrunError):
                    pass  # the engine's own; here the checkers are tested
        raise AssertionError(f"{self.name} was caught by {promises or 'nobody'}")

    def _write(self, seed: int) -> None:
        if not REWRITES:
            return
        with NEAR.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            seeds = json.load(file) | {self.name: seed}
            file.seek(0)
            file.truncate()
            file.write(json.dumps(dict(sorted(seeds.items())), indent=2) + "\n")

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Break the agent for as long."""
        patches = self.patches()
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
        for owner, name, value in patches:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)


def mutant(*killers: str, job: Job = "in a storm", test: str = "") -> Callable[[Callable[[], list[Patch]]], Mutant]:
    """Make a mutant of a function that returns its patches."""

    def made(patches: Callable[[], list[Patch]]) -> Mutant:
        return Mutant(patches.__name__, patches, killers, "none" if test else job, test)

    return made
