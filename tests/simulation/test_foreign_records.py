"""What an agent of the job may say of a record that is not the job's: the others answer a few times, and work on.

It may come from one that has founded another job, that was cut off for long, or that somebody has forged.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from values import ready

from simulation.cluster import Node
from simulation.crowd import Crowd
from softrun.agent.consensus.change import difference
from softrun.agent.core.stages import Stage
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.model import (
    Accept,
    Beat,
    Decided,
    Hello,
    Message,
    Phase,
    Prepare,
    Promise,
    Record,
    Refused,
    Round,
)

NODES = 4
SEEDS = 24
AWHILE_S = 3.0
LONG_S = 100.0
"""A job that has given up for one that it cannot find begins anew."""
A_FEW = 20 * NODES
"""Messages: a new world of all of them takes half of that."""


def foreign(own: Round, draw: random.Random) -> Round:
    lineage = draw.choice((own.lineage, "node-1@1", "x@1"))
    version = draw.choice((1, own.version, own.version + 1, own.version + 7, 1_000_000))
    return replace(
        own,
        lineage=lineage,
        version=version,
        number=draw.choice((1, own.number + 1, 99)),
        phase=draw.choice((Phase.OPEN, Phase.SEALED)),
        members=own.members[: draw.randint(1, NODES)],
        name="f00d",
        past=draw.choice((own.past, ("zz",) * 5)),
        split_from=draw.choice(("", own.lineage)),
        worked_s=draw.choice((0.0, 100_000.0)),
    )


def said_of(record: Round, own: Round, sender: Node, draw: random.Random) -> Message:
    ballot = (draw.choice((0, 1, 5, 999)), draw.choice((sender.name, "x")))
    last = sender.engine._standing.said
    report = ready(own.by_node[sender.name], known=record.id, sequence=last.sequence + 1 if last is not None else 1)
    change = difference(own, record)
    return draw.choice(
        (
            Record(record, stands=draw.random() < 0.5),
            Record(record, stands=True, apart_from=own.name),
            Record(record, stands=True, over=own.lineage),
            report,
            Hello(report),
            Prepare(ballot, record.id),
            Promise(ballot, (0, "x"), change, record.id),
            Accept(ballot, change, record.id),
            Decided(ballot, record.id),
            Refused(ballot, record.id),
        )
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nobody_answers_without_end_and_the_job_goes_on(seed: int) -> None:
    draw, crowd = random.Random(seed), Crowd(NODES, may_go=NODES - 1)
    crowd.start()
    crowd.settle()
    cluster, own = crowd.cluster, crowd.cluster.store.round
    assert own is not None
    said: list[do.Say] = []

    def listen(_node: Node, _seen: saw.Observation, effects: list[do.Effect]) -> None:
        said.extend(e for e in effects if isinstance(e, do.Say) and not isinstance(e.message, Beat))

    cluster.listeners.append(listen)
    record = foreign(own, draw)
    for _ in range(draw.choice((1, 3))):
        sender, receiver = draw.sample([*own.by_node], 2)
        cluster.deliver(cluster.nodes[receiver], saw.Heard(sender, said_of(record, own, cluster.nodes[sender], draw)))
        cluster.run_until(cluster.now + draw.choice((0.0, 0.001, 0.1)))
    for _ in range(3):
        said.clear()
        cluster.run_until(cluster.now + AWHILE_S)
        assert len(said) <= A_FEW
    cluster.run_until(cluster.now + LONG_S)
    assert all(node.engine.stage is Stage.WORKING for node in cluster.nodes.values() if node.alive)
