"""Every order of events among three agents, within bounds: no promise is broken, and what was broken once is found."""

from __future__ import annotations

import pytest
from one_replica import FIRST, JOB, A, B, C
from values import of_job, sealed

from simulation.explored_agents import WITNESS
from simulation.explorer import Bounds, BrokenError, explore
from simulation.mutants import consensus, leases, those
from simulation.mutants.mutant import Mutant
from softrun.agent.protocol.model import Accept, Accepted, Decided

PAIR = of_job(JOB, sealed(A, B), witness=WITNESS)
FINISHED = of_job(JOB, sealed(A, B, C, finishing=True), finished=(2,))
VOTES = (Accept, Accepted, Decided)
BOUNDS = {
    "isolated twice": (FIRST, Bounds(ticks=3, absences=2, kinds=("isolate",)), 65_000),
    "stopped for long": (FIRST, Bounds(ticks=3, absences=1, kinds=("stop",), versions=1, slow=VOTES), 8_000),
    "one ends, one is isolated": (FIRST, Bounds(ticks=3, absences=1, ends=1, kinds=("isolate",), versions=1), 11_000),
    "two end, one begins anew": (
        FIRST,
        Bounds(ticks=3, absences=1, ends=2, kinds=("isolate",), slow=(Accept,)),
        18_000,
    ),
    "a pair with a witness": (PAIR, Bounds(ticks=3, absences=1, kinds=("isolate",)), 17_000),
    "one has finished and falls silent": (
        FINISHED,
        Bounds(ticks=3, absences=2, kinds=("isolate",), slow=VOTES),
        36_000,
    ),
    "one has finished and ends": (
        FINISHED,
        Bounds(ticks=3, absences=1, ends=2, kinds=("isolate",), slow=(Accept,)),
        13_000,
    ),
    "of which one ends": (PAIR, Bounds(ticks=3, absences=1, ends=1, kinds=("isolate",), versions=1), 17_000),
}
"""The first record, what may happen, and how many different worlds that makes at the least. `scripts/soak --explore`
goes deeper."""


@pytest.mark.parametrize("name", BOUNDS)
def test_no_order_of_events_makes_two_worlds(name: str) -> None:
    first, bounds, worlds = BOUNDS[name]
    assert explore(first, bounds) >= worlds


WRONG = {
    consensus.founds_when_it_is_left_out: (FIRST, Bounds(ticks=3, kinds=("stop",), slow=VOTES)),
    leases.grants_time_to_whom_it_leaves_behind: (FIRST, Bounds(ticks=3, kinds=("stop",), versions=1, slow=VOTES)),
    consensus.half_is_a_quorum: (FIRST, Bounds(ticks=4, kinds=("isolate",), slow=VOTES)),
    consensus.needs_no_quorum: (FIRST, Bounds(ticks=3, kinds=("isolate",))),
    consensus.decides_without_the_voters: (FIRST, Bounds(ticks=3, kinds=("isolate",))),
    consensus.goes_back_to_older_records: (FIRST, Bounds(ticks=3, kinds=("isolate",))),
    consensus.counts_a_silent_witness: (PAIR, Bounds(ticks=3, kinds=("isolate",))),
    consensus.forgets_its_promises: (PAIR, Bounds(ticks=3, absences=1, kinds=("stop",), versions=1, slow=VOTES)),
    consensus.the_first_has_a_casting_vote_as_well: (PAIR, Bounds(ticks=3, kinds=("isolate",))),
}


@pytest.mark.parametrize("mutant", WRONG, ids=lambda mutant: mutant.name)
def test_what_is_wrong_is_found(mutant: Mutant) -> None:
    with mutant.alive(), pytest.raises(BrokenError):
        explore(*WRONG[mutant])


def test_every_mutant_that_only_an_order_of_events_shows_is_looked_for() -> None:
    assert {*those("in every order of events")} <= WRONG.keys()
