"""A seed is a plan, and a plan says how its run should end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storm.expect import exit_codes, fails, may_lose_process, must_be_there
from storm.plan import FAMILIES, LATE, MANY_RESTARTS, PHASES, Fault, Plan, Slot, draw

PLANS = [draw(seed, family) for family in FAMILIES for seed in range(300)]
B0, B1 = Slot("b", 0), Slot("b", 1)


def test_a_plan_is_a_function_of_its_seed() -> None:
    assert [draw(plan.seed, plan.family) for plan in PLANS] == PLANS
    assert draw(7).family in FAMILIES
    assert draw(7) == draw(7, draw(7).family)


def test_every_kind_strikes_in_every_phase() -> None:
    drawn = {(plan.family, fault.kind, fault.phase) for plan in PLANS for fault in plan.faults}
    kinds = ("kill", "segv", "exit0", "exit3", "exception", "hang", "stop")
    missing = {(family, kind, phase) for family in FAMILIES for kind in kinds for phase in PHASES[family]} - drawn
    assert len(missing) < 5, missing
    assert {kind for _, kind, _ in drawn} > {"term", "agent", "node", "newcomer"}


def test_somebody_is_never_harmed_and_every_plan_can_be_carried_out() -> None:
    for plan in PLANS:
        assert plan.faults
        assert [fault.number for fault in plan.faults] == list(range(len(plan.faults)))
        if plan.max_restarts:
            assert {fault.slot for fault in plan.faults if fault.kind != "newcomer"} < set(plan.slots)
        assert all(fault.phase not in LATE for fault in plan.faults[:-2])
        assert all(fault.after is None or fault.after < fault.number for fault in plan.faults)


def storm(*faults: Fault, policy: str, max_restarts: int = MANY_RESTARTS, family: str = "rfc") -> Plan:
    return Plan(0, family, "3x2", "etcd", policy, max_restarts, False, faults)


@pytest.mark.parametrize(
    ("policy", "lost", "there", "code"),
    [
        ("no-replace", {B0, B1}, 6, 0),
        ("replace", {B1}, 6, 0),
        ("record", {B1}, 5, 0),
    ],
)
def test_what_a_kill_costs(policy: str, lost: set[Slot], there: int, code: int) -> None:
    kill = Fault(0, "kill", B1, "step")
    plan = storm(kill, policy=policy)
    assert may_lose_process([kill], plan) == lost
    assert len(must_be_there([kill], plan)) == there
    assert exit_codes("b", [kill], plan) == {code}
    assert may_lose_process([], plan) == set(), "what did not strike excuses nothing"


def test_a_node_whose_restarts_are_spent_leaves() -> None:
    kill = Fault(0, "kill", B1, "step")
    plan = storm(kill, policy="replace", max_restarts=0)
    assert may_lose_process([kill], plan) == {B0, B1}
    assert {slot.node for slot in must_be_there([kill], plan)} == {"a", "c"}
    assert (exit_codes("b", [kill], plan), exit_codes("a", [kill], plan)) == ({1}, {0})


def test_a_node_may_fail_as_a_whole_while_its_ranks_return() -> None:
    kill = Fault(0, "kill", B1, "return")
    plan = storm(kill, policy="no-replace")
    assert {slot.node for slot in must_be_there([kill], plan)} == {"a", "c"}
    assert exit_codes("b", [kill], plan) == {0, 1}
    assert {slot.node for slot in must_be_there([kill], storm(kill, policy="replace"))} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("family", "kind", "phase", "is_failure"),
    [
        ("rfc", "exception", "step", False),
        ("rfc", "exception", "completion", True),
        ("worlds", "exception", "step", True),
        ("wrapper", "exception", "step", False),
        ("wrapper", "exception", "health", True),
        ("wrapper", "hang", "step", False),
        ("worlds", "hang", "step", True),
        ("callbacks", "hang", "assign", False),
        ("callbacks", "hang", "finalize", True),
        ("callbacks", "exception", "initialize", False),
        ("callbacks", "exception", "finalize", True),
        ("rfc", "exit0", "step", False),
    ],
)
def test_who_survives_what(family: str, kind: str, phase: str, is_failure: bool) -> None:
    fault = Fault(0, kind, B1, phase)
    assert fails(fault, storm(fault, policy="replace", family=family)) is is_failure


def test_whoever_has_exited_is_missed_by_nobody() -> None:
    leave, kill = Fault(0, "exit0", B0, "step"), Fault(1, "kill", B1, "step", after=0)
    plan = storm(leave, kill, policy="replace")
    assert {slot.node for slot in must_be_there([leave, kill], plan)} == {"a", "c"}
    assert exit_codes("b", [leave], plan) == {0}


def test_who_comes_back_when_a_node_has_finished_may_come_too_late() -> None:
    stop, kill = Fault(0, "stop", Slot("c", 0), "step", resumes_s=3.0), Fault(1, "kill", B0, "step")
    exit0 = Fault(2, "exit0", B1, "step")
    plan = storm(stop, kill, exit0, policy="record")
    assert Slot("c", 0) in must_be_there([stop, kill], plan)
    assert Slot("c", 0) not in must_be_there([stop, kill, exit0], plan)
    assert Slot("c", 0) in may_lose_process([stop], replace(plan, hurries=True))
    assert Slot("c", 0) not in may_lose_process([stop], plan)
    late = replace(stop, phase="return")
    assert Slot("c", 0) in may_lose_process([late], plan), "the others are through meanwhile"


def test_where_a_node_has_finished_a_failure_is_for_good() -> None:
    left = [Fault(0, "exit0", B0, "health"), Fault(1, "exit0", B1, "health")]
    kill = Fault(2, "kill", Slot("c", 0), "step")
    plan = storm(*left, kill, policy="no-replace")
    assert exit_codes("c", [kill], plan) == {0}
    assert exit_codes("c", [*left, kill], plan) == {0, 1}
    assert {slot.node for slot in must_be_there([*left, kill], plan)} == {"a"}


def test_where_a_node_has_finished_a_newcomer_may_not_be_let_in() -> None:
    newcomer, left = Fault(0, "newcomer", B0, "start"), Fault(1, "exit0", B0, "assign")
    kill = Fault(2, "kill", B1, "step")
    plan = storm(newcomer, left, kill, policy="record", family="callbacks")
    assert Slot("n", 0) in must_be_there([newcomer, left], plan)
    assert Slot("n", 0) not in must_be_there([newcomer, left, kill], plan)


def test_the_host_of_a_c10d_store_keeps_a_worker() -> None:
    """It may be alone as yet. With its last one it would end, and the job with it."""
    for plan in PLANS:
        if plan.store == "c10d" and plan.max_restarts:
            struck = {fault.slot for fault in plan.faults if fault.kind != "newcomer"}
            assert {slot for slot in plan.slots if slot.node == plan.nodes[0]} - struck, str(plan)


def test_a_node_of_which_the_last_one_hangs_may_be_done_before_that_is_known() -> None:
    kill, hang = Fault(0, "kill", B0, "step"), Fault(1, "hang", B1, "step")
    assert exit_codes("b", [kill, hang], storm(kill, hang, policy="record")) == {0, 1}
    second = Fault(1, "kill", B1, "step")
    assert exit_codes("b", [kill, second], storm(kill, second, policy="record")) == {1}
