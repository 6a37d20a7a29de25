"""When a leader has to gather the verdicts of a world that it ends, from whom, and which of them count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from values import STORE, member, ready, sealed

from softrun.agent.protocol.live import Verdict
from softrun.agent.protocol.model import NodeIntent, Phase, Report, Round
from softrun.agent.rendezvous import promises, transitions
from softrun.runtime.calls import Way

A, B, C = member("a"), member("b"), member("c")
WORLD = sealed(A, B, C, number=4)


def reports(**changes: object) -> dict[str, Report]:
    return {m.node: ready(m, calls=4, **changes) for m in (A, B, C)}


def next_world(*members: object, **changes: int) -> Round:
    return transitions.seal(WORLD, list(members), STORE, (), **changes)  # type: ignore[arg-type]


def exit_(count: int, epoch: int = 4) -> Verdict:
    return Verdict(epoch, (), count, Way.EXIT, ok=True)


@pytest.mark.parametrize(
    ("proposal", "needed"),
    [
        (next_world(A, B), True),
        (transitions.fall_short(WORLD, [A], ("b",)), True),
        (transitions.close(WORLD, ""), False),
        (transitions.admit_nobody(WORLD), False),
        (transitions.attest(WORLD, "w"), False),
        (next_world(A, B, leave_after=17), False),
        (next_world(B, C, leave_after=17), True),
    ],
    ids=["next", "short", "closed", "same", "attested", "after a step", "after a step, without the coordinator"],
)
def test_a_record_that_ends_a_world_takes_its_verdicts_in(proposal: Round, needed: bool) -> None:
    assert promises.needed(WORLD, proposal, reports()) is needed


def test_where_nobody_calls_nothing_is_gathered() -> None:
    quiet = {m.node: ready(m) for m in (A, B, C)}
    assert not promises.needed(WORLD, next_world(A, B), quiet)
    assert promises.needed(WORLD, next_world(A, B), quiet | {"b": ready(B, calls=3)}), "its step may still be under way"
    assert not promises.needed(replace(WORLD, phase=Phase.OPEN), next_world(A, B), reports())


def test_who_has_decided_everything_promises_alone() -> None:
    told = reports()
    told["a"] = replace(told["a"], decides=4)
    assert promises.owing(WORLD, told, set(), set(), "a") == {"a"}
    told["a"] = replace(told["a"], promised=WORLD.version)
    assert promises.owing(WORLD, told, set(), set(), "a") == set()


def test_another_leader_asks_all_that_it_hears() -> None:
    told = reports()
    del told["a"]
    told["b"] = replace(told["b"], promised=WORLD.version)
    assert promises.owing(WORLD, told, {"a"}, set(), "b") == {"c"}
    told["c"] = replace(told["c"], promised=WORLD.version - 1)
    assert promises.owing(WORLD, told, {"a"}, set(), "b") == {"c"}, "that was another record"
    told["c"] = replace(told["c"], ends=True)
    assert promises.owing(WORLD, told, {"a"}, set(), "b") == set(), "it delivers nothing more in any case"


def test_who_was_only_refused_is_waited_for() -> None:
    """It may live, and deliver something while its lease stands."""
    told = reports(promised=WORLD.version)
    del told["a"]
    assert promises.owing(WORLD, told, {"a"}, {"a"}, "b") == {"a"}
    told["b"] = replace(told["b"], decides=4)
    assert promises.owing(WORLD, told, {"a"}, {"a"}, "b") == set(), "only b has anything to deliver"


def test_the_last_verdict_of_each_scope_counts() -> None:
    some = Verdict(4, ("a/0",), 9, Way.BARRIER)
    told = reports(promised=WORLD.version)
    told["b"] = replace(told["b"], verdicts=(exit_(6), exit_(30, epoch=3)))
    told["c"] = replace(told["c"], verdicts=(exit_(7), some))
    assert promises.verdicts(WORLD, told) == (exit_(30, epoch=3), exit_(7), some)


def test_who_has_not_promised_may_deliver_another_one_yet() -> None:
    told = reports(verdicts=(exit_(8),))
    assert promises.verdicts(WORLD, told) == ()
    told["b"] = replace(told["b"], intent=NodeIntent.FINISHED)
    assert promises.verdicts(WORLD, told) == (exit_(8),), "its work is done"
