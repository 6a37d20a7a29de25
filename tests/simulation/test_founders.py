"""Jobs with several endpoints, whose hosts come and go, and are paused: who founds one, and beside whom.

A founder cannot know of a job that it cannot reach. But what answers at an endpoint, or at the witness's address, it
knows, and silence where something accepts is no answer. Nor is that of an agent of another secret or release.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from simulation.chaos import Life, Plan
from simulation.checkers import Checker, all_checkers
from simulation.cluster import Node
from simulation.mutants import those
from simulation.mutants.mutant import Mutant
from simulation.witness import PLACE
from softrun.agent.protocol.model import Round

SEEDS = 48
MOST = 300  # for the mutants
FAULTS = ("stall", "stall", "flap", "kill_leader", "join_late", "power_off", "split", "sigterm", "suspend")
STRANGERS = 0.25  # of the seeds
LOOKED_S = 1.5  # what a founder has seen is no older, nor is what it can see then


class FoundsAlone(Checker):
    """Nobody founds a job beside one that it can find: at an endpoint, or through the witness."""

    def __init__(self) -> None:
        self._has_had_one_since: dict[str, float] = {}

    def adopted(self, node: Node, round_: Round) -> None:
        self._has_had_one_since.setdefault(node.name, self.cluster.now)

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if before is not None or after.version != 1 or self.cluster.now - self.cluster.network.torn_at < LOOKED_S:
            return
        for endpoint in by.config.endpoints:
            what, since = self.cluster.network.strangers.get(endpoint, ("nobody", math.inf))
            self.demand(self.cluster.now - since < LOOKED_S, f"{by.name} founds a job beside {what} at {endpoint}")
        endpoints = [self.cluster.network.holder(endpoint) for endpoint in by.config.endpoints]
        witness = self.cluster.witnesses.running if by.config.job.witness is not None else None
        for node in (*endpoints, witness if witness is not None and not witness.stalled else None):
            if node is None or node is by or not node.alive or node.side != by.side:
                continue
            if node.dark or self.cluster.now - node.woke < LOOKED_S:
                continue  # its machine was suspended
            record, since = node.engine.record, self._has_had_one_since.get(node.name, self.cluster.now)
            works = record is not None and not record.is_last and self._lives(record)
            self.demand(
                not works or self.cluster.now - since < LOOKED_S,
                f"{by.name} founds a job beside that of {node.name}, which it can reach",
            )

    def _lives(self, record: Round) -> bool:
        """Whether a job has agents; a witness keeps the record of a dead one."""
        return any(self.cluster.nodes[m.node].alive for m in record.members)


def founded(plan: Plan) -> Plan:
    draw = random.Random(plan.seed)
    nodes = draw.choice((2, 3, 3, 4))
    witness = draw.choice((None, None, PLACE))
    return replace(
        plan,
        job=replace(plan.job, min_nodes=1, max_nodes=nodes, named_store=False, witness=witness),
        nodes=nodes,
        lease_s=None,
        faults=tuple(draw.sample(FAULTS, draw.randint(1, 4))),
        fault_every_s=draw.choice((0.3, 1.0, 3.0)),
        break_s=draw.uniform(5.0, 30.0),
        stagger_s=draw.choice((0.0, 0.01, 1.0, 4.0)),
        join_timeout_s=60.0,
        workers=1,
        endpoints=draw.choice((1, 2, 2, 3)),
        strangers=draw.random() < STRANGERS,
    )


def run(seed: int) -> None:
    Life(seed, [*all_checkers(), FoundsAlone()], change=founded).run()


@pytest.mark.parametrize("chunk", range(3))
def test_nobody_founds_a_job_beside_one_that_can_be_found(chunk: int) -> None:
    for seed in range(chunk, SEEDS, 3):
        try:
            run(seed)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}", pytrace=False)


@pytest.mark.parametrize("mutant", those("with several endpoints"), ids=lambda mutant: mutant.name)
def test_mutant_dies(mutant: Mutant) -> None:
    mutant.must_die(run, MOST)
