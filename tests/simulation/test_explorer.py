"""Every order of events among three agents, within bounds: no promise is broken, and what was broken once is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from one_replica import FIRST

from simulation import mutants
from simulation.explorer import Bounds, BrokenError, explore
from simulation.mutants import Patch
from softrun.agent.consensus.replica import Replica
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.effects import Effect
from softrun.agent.protocol.model import Accept, Accepted, Decided, Record, Round, lineage

VOTES = (Accept, Accepted, Decided)
BOUNDS = {
    "isolated twice": (Bounds(ticks=3, absences=2, kinds=("isolate",)), 65_000),
    "stopped for long": (Bounds(ticks=3, absences=1, kinds=("stop",), versions=1, slow=VOTES), 8_000),
    "one ends, one is isolated": (Bounds(ticks=3, absences=1, ends=1, kinds=("isolate",), versions=1), 11_000),
}
"""What may happen, and how many different worlds that makes at the least. `scripts/soak --explore` goes deeper."""


@pytest.mark.parametrize("name", BOUNDS)
def test_no_order_of_events_makes_two_worlds(name: str) -> None:
    bounds, worlds = BOUNDS[name]
    assert explore(FIRST, bounds) >= worlds


def founds_when_it_is_left_out() -> list[Patch]:
    """Finding 0 of the review: a proposal of an agent without a vote began a job, whatever it was made from."""

    def wrong(self: Replica, round_: Round) -> list[Effect]:
        record = self.record
        if record is None or self._votes(self._node):
            return right(self, round_)
        version = record.version + 1
        first = replace(round_, version=version, lineage=lineage(self._node, version), name=self._new_name(), past=())
        self.read(first)
        return [do.Say(None, Record(first, stands=True))]

    right = Replica.propose
    return [(Replica, "propose", wrong)]


def grants_time_to_whom_it_leaves_behind() -> list[Patch]:
    """Finding 7: a lease was granted while a record was under way that leaves its holder behind."""
    return [(Replica, "left_behind_at", lambda _self, _node: None)]


WRONG = {
    founds_when_it_is_left_out: Bounds(ticks=3, kinds=("stop",), slow=VOTES),
    grants_time_to_whom_it_leaves_behind: Bounds(ticks=3, kinds=("stop",), versions=1, slow=VOTES),
    mutants.half_is_a_quorum: Bounds(ticks=4, kinds=("isolate",), slow=VOTES),
    mutants.needs_no_quorum: Bounds(ticks=3, kinds=("isolate",)),
    mutants.decides_without_the_voters: Bounds(ticks=3, kinds=("isolate",)),
    mutants.goes_back_to_older_records: Bounds(ticks=3, kinds=("isolate",)),
}


@pytest.mark.parametrize("patches", WRONG, ids=lambda patches: patches.__name__)
def test_what_is_wrong_is_found(patches: Callable[[], list[Patch]], monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, value in patches():
        monkeypatch.setattr(owner, name, value)
    with pytest.raises(BrokenError):
        explore(FIRST, WRONG[patches])
