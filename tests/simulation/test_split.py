"""One job becomes two of one name: all that its agents believe of death is false. They see it when they meet again, and
one of the two gives up: never the one that a quorum of the last common record went on with.

Somebody forges the last words of each half to the other, which only who knows the job's secret can do. What must not
happen has happened then, so nothing is asked here of the time until the network is whole.
"""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import pytest

from simulation.chaos import Life, Plan
from simulation.checkers import BrokenPromiseError, Checker
from simulation.cluster import Node
from simulation.mutants import those
from simulation.mutants.mutant import Mutant
from softrun.agent.consensus.quorum import is_quorum
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.model import Phase, Round

SEEDS = 32
MOST = 60  # for the mutants
MEANWHILE = ("fail_worker", "break_world", "join_late", "except_worker")


class Halves(Checker):
    """Which of the two gives up, and what is said of it."""

    def __init__(self) -> None:
        self.until = inf  # when the two can meet
        self.halves: tuple[set[str], ...] = ()
        self.name = ""  # of the job that is torn
        self.has_third = False  # newcomers that found neither half have founded another job
        self.gave_up: set[str] = set()
        self.errors: list[tuple[str, str]] = []
        self._knew: dict[str, tuple[Round, set[str]]] = {}  # which of them

    def adopted(self, node: Node, round_: Round) -> None:
        if self.cluster.now < self.until:
            self._knew.setdefault(round_.name, (round_, set()))[1].add(node.name)
        self.has_third |= self.name not in ("", round_.lineage, round_.split_from)
        is_torn = self.name != "" and self.name in (round_.lineage, round_.split_from)
        if round_.phase is Phase.GIVEN_UP and is_torn:  # not one that was founded beside it before
            self.gave_up.add(node.name)

    @property
    def quorum(self) -> set[str]:
        """The half that has gone on as a quorum of the last record that both have, if one has."""
        both = [round_ for round_, nodes in self._knew.values() if all(nodes & half for half in self.halves)]
        last = max(both, key=lambda round_: round_.version)
        next_ = [nodes for round_, nodes in self._knew.values() if round_.version == last.version + 1]
        went_on = set().union(*next_)
        return next((half for half in self.halves if is_quorum(last, half & went_on)), set())

    def effect(self, node: Node, effect: do.Effect) -> None:
        if isinstance(effect, do.Note) and effect.error:
            self.errors.append((node.name, effect.text))


def torn(plan: Plan) -> Plan:
    draw = random.Random(plan.seed)
    nodes = draw.choice((2, 2, 3, 4, 5))
    return replace(
        plan,
        job=replace(plan.job, min_nodes=1, max_nodes=nodes + 2, named_store=False, witness=None, restart_policy="soft"),
        nodes=nodes,
        lease_s=None,
        faults=draw.choice(((), MEANWHILE)),
        fault_every_s=1.0,
        break_s=draw.uniform(9.0, 20.0),
        stagger_s=0.01,
        join_timeout_s=60.0,
        max_restarts=1000,
        workers=1,
        is_adverse=False,
    )


def tear(life: Life, halves: Halves) -> None:
    """Cut the network in two, and have each half believe that the other has ended."""
    record, draw = life.cluster.store.round, random.Random(life.plan.seed)
    nodes = [node for node in life.up() if record is not None and node.name in record.by_node]
    if record is None or record.phase is not Phase.SEALED or len(nodes) != len(record.members) or len(nodes) < 2:
        return
    draw.shuffle(nodes)
    at = draw.randrange(1, len(nodes))
    one, other = nodes[:at], nodes[at:]
    halves.halves = tuple({node.name for node in half} for half in (one, other))
    halves.name = record.lineage
    words = {node: saw.Heard(node.name, node.engine.last_words_in_full) for node in nodes}
    life.cluster.network.split({node.name: int(node in one) for node in life.up()})
    for half, rest in ((one, other), (other, one)):
        for node in half:
            for dead in rest:
                life.cluster.deliver(node, words[dead])


def run(seed: int) -> Halves:
    halves = Halves()
    life = Life(seed, [halves], change=torn)
    halves.until = life.plan.break_s
    life.blocks = None  # what is decided in both halves is not the same, of course
    life.cluster.after(6.0, tear, life, halves)
    life.run()
    if halves.gave_up and not halves.has_third:
        if halves.gave_up & halves.quorum:
            raise BrokenPromiseError("QuorumKept", f"the half that gives up was the quorum: {sorted(halves.gave_up)}")
        if not halves.errors and any(halves.gave_up & half for half in halves.halves):
            raise BrokenPromiseError("Told", f"{sorted(halves.gave_up)} gave up, and nobody says that there were two")
    return halves


@pytest.mark.parametrize("chunk", range(2))
def test_two_jobs_of_one_name_become_one(chunk: int) -> None:
    were_two = 0
    for seed in range(chunk, SEEDS, 2):
        try:
            halves = run(seed)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}", pytrace=False)
        were_two += bool(halves.gave_up)
        assert len(halves.errors) <= 8, f"seed {seed}: {halves.errors}"
    assert were_two > SEEDS / 4, "hardly any was torn"


@pytest.mark.parametrize("mutant", those("torn in two"), ids=lambda mutant: mutant.name)
def test_mutant_dies(mutant: Mutant) -> None:
    mutant.must_die(run, MOST)
