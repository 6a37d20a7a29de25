"""What a start, a loss and a leave cost, counted, for more and more nodes: operations on the store, and messages.

And that a leader need not look at all nodes at each report.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from simulation.chaos import Life
from simulation.cluster import Node
from simulation.crowd import Cost, Crowd
from softrun.agent.core.engine import LOOKS_PER_BEAT, Engine
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.rendezvous import decision_cache, decisions
from softrun.agent.rendezvous.decisions import Decision

SIZES = [16, 100]


def costs(nodes: int, lease_s: float | None) -> dict[str, Cost]:
    """By what happens; "then" is what follows. Without `lease_s` the agents keep the record themselves."""
    crowd = Crowd(nodes, lease_s)
    told = {"start": crowd.start(), "then start": crowd.settle()}
    told |= {"loss": crowd.lose(crowd.follower()), "then loss": crowd.settle()}
    told |= {"leave": crowd.dismiss(crowd.follower()), "then leave": crowd.settle()}
    told |= {"leader": crowd.lose(crowd.leader()), "then leader": crowd.settle()}
    return told


@pytest.mark.parametrize("lease_s", [None, 20.0])
@pytest.mark.parametrize("nodes", SIZES)
def test_a_start_costs_a_few_operations_for_each_node_and_a_change_one_write(nodes: int, lease_s: float | None) -> None:
    told = costs(nodes, lease_s)
    start = told["start"]
    assert start.writes == 2, "the record is made, and sealed"
    assert start.asked <= nodes + 2, "each tries to make the record, since there is none yet; one seals it"
    # Those that keep the record show it to each other as well, and agree on the next one.
    # The last two of each are about its workers, which have asked for their world.
    assert start.messages <= (11 if lease_s is None else 6) * nodes
    assert start.observations <= 14 * nodes
    assert start.most <= 4 * nodes
    for what in ("loss", "leave", "leader"):
        change, then = told[what], told[f"then {what}"]
        assert (change.writes, change.asked) == (1, 0 if lease_s is None else 1)
        assert (then.writes, then.asked) == (0, 0)
        # Where nobody was lost all are asked which step they can reach.
        most = 5 if what == "leave" else 2
        if lease_s is None:  # accept, accepted, decided; a new leader was promised its ballot with the hellos
            most += 3
        assert change.messages + then.messages <= most * nodes
        assert change.bytes + then.bytes <= 3000 * nodes, "no record of all nodes is sent to all nodes"
        assert change.observations + then.observations <= 12 * nodes


@pytest.mark.parametrize("whose", ["a follower's", "the leader's"])
def test_a_silent_host_is_left_behind_within_ten_seconds_in_the_largest_job(whose: str) -> None:
    crowd = Crowd(16, like=10_000)
    crowd.start()
    crowd.settle()
    node = crowd.leader() if whose == "the leader's" else crowd.follower()
    assert 5.0 < crowd.lose(node, silent=True).seconds < 10.0


@pytest.mark.parametrize("nodes", SIZES)
def test_a_leader_decides_a_few_times_however_many_report(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decided = []
    decide = decisions.decide

    def counting(*args: object) -> Decision:
        decided.append(args)
        return decide(*args)  # type: ignore[arg-type]  # just as they come

    monkeypatch.setattr(decisions, "decide", counting)
    crowd = Crowd(nodes)
    crowd.start()
    crowd.settle()
    crowd.lose(crowd.follower())
    crowd.settle()
    crowd.lose(crowd.leader())
    crowd.settle()
    assert len(decided) <= 30


@pytest.mark.parametrize("nodes", SIZES)
def test_a_job_whose_nodes_are_told_to_leave_one_after_the_other_keeps_its_leader(nodes: int) -> None:
    crowd = Crowd(nodes)
    crowd.start()
    crowd.settle()
    assert crowd.end(within_s=0.25) <= 2 * nodes, "they ended together, and each looked once for whom to tell"


@pytest.mark.parametrize("nodes", SIZES)
def test_a_leader_looks_at_what_follows_from_beats_a_few_times_however_many_it_hears(
    nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: Counter[Engine] = Counter()
    advance = Engine._advance

    def counting(self: Engine) -> None:
        looked[self] += 1
        advance(self)

    crowd = Crowd(nodes)
    crowd.start()
    crowd.settle()
    monkeypatch.setattr(Engine, "_advance", counting)
    leader, intervals = crowd.leader(), 3
    crowd.cluster.run_until(crowd.cluster.now + intervals * leader.config.beat_interval_s)
    assert 0 < looked[leader.engine] <= intervals * (LOOKS_PER_BEAT + 1) + 1


@pytest.mark.parametrize("seed", range(10))
def test_a_decision_that_stands_is_the_one_that_would_be_made(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that decides anew after each report does the same."""
    sparing = deeds(seed)
    monkeypatch.setattr(decision_cache, "stands", lambda *_: False)
    assert deeds(seed) == sparing


def deeds(seed: int) -> str:
    """A digest of all that is done in this life; a leader's reasons do not count."""
    digest = hashlib.sha256()
    life = Life(seed)

    def write(node: Node, _seen: saw.Observation, effects: list[do.Effect]) -> None:
        for effect in effects:
            if not (isinstance(effect, do.Note) and effect.detail):
                digest.update(f"{life.cluster.now!r} {node.name} {effect!r}\n".encode())

    life.cluster.listeners.append(write)
    life.run()
    return digest.hexdigest()
