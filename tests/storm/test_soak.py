"""What a soak tells at its end."""

from __future__ import annotations

from dataclasses import replace

from storm.plan import MANY_RESTARTS, Fault, Plan, Slot
from storm.soak import Verdict, table

PLAN = Plan(7, "rfc", "1x4", "c10d", "replace", MANY_RESTARTS, False, (Fault(0, "kill", Slot("a", 1), "step"),))


def test_the_table_has_a_line_for_each_kind_of_run() -> None:
    verdicts = [
        Verdict(PLAN, (), faults=1, rounds=3, took_s=4.0),
        Verdict(PLAN, ("it did not end",), faults=2, rounds=13, lost=2, took_s=10.0),
        Verdict(replace(PLAN, store="etcd"), (), took_s=5.0),
    ]
    head, *rows = [line.split() for line in table(verdicts)]
    assert head[:7] == ["family", "policy", "layout", "store", "runs", "failed", "faults"]
    assert rows == [
        ["rfc", "replace", "1x4", "c10d", "2", "1", "3", "4.0", "6.0", "2", "7"],
        ["rfc", "replace", "1x4", "etcd", "1", "0", "0", "-", "-", "0", "5"],
    ]


def test_a_verdict_says_how_it_is_replayed() -> None:
    assert Verdict(PLAN, ()).replay == "scripts/soak --real --replay 7 --family rfc"
