"""Jobs of two and four nodes with a witness, whose network is cut while the witness comes and goes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from simulation.chaos import Life, Plan
from simulation.mutants import those
from simulation.mutants.mutant import Mutant
from simulation.witness import PLACE

SEEDS = 32
MOST = 600  # for the mutants
FAULTS = ("split", "stall", "power_off", "flap", "join_late", "kill_leader")


def torn(plan: Plan) -> Plan:
    draw = random.Random(plan.seed)
    nodes = draw.choice((2, 2, 4))
    return replace(
        plan,
        job=replace(plan.job, min_nodes=1, max_nodes=nodes, named_store=False, witness=PLACE),
        nodes=nodes,
        lease_s=None,
        faults=("split", "split", *draw.sample(FAULTS, draw.randint(0, 3))),
        fault_every_s=draw.choice((1.0, 3.0)),
        break_s=draw.uniform(5.0, 30.0),
        join_timeout_s=60.0,
        workers=1,
    )


def run(seed: int) -> None:
    Life(seed, change=torn).run()


@pytest.mark.parametrize("chunk", range(2))
def test_a_job_with_a_witness_that_is_torn_has_one_history_and_goes_on(chunk: int) -> None:
    for seed in range(chunk, SEEDS, 2):
        try:
            run(seed)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}", pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", those("with a witness"), ids=lambda mutant: mutant.name)
def test_mutant_dies(mutant: Mutant) -> None:
    mutant.must_die(run, MOST)
