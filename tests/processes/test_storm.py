"""Some seeds of the storm: sequences of faults on real processes, each checked by all that must hold of a run.

`scripts/soak --real` runs as many as one likes, and replays one of these: `--replay SEED --family FAMILY`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from nursery import Nursery

from local_etcd import LocalEtcd
from storm.plan import FAMILIES, LAYOUTS, POLICIES, RANK_KINDS, STORES, Plan, draw
from storm.soak import run_plan

pytestmark = pytest.mark.processes

TOLD_CHARACTERS = 20_000
SEEDS = {
    "rfc": (8, 10, 13, 30, 34, 3),
    "worlds": (1, 7, 15, 34, 47, 4),
    "wrapper": (4, 24, 109, 7),
    "callbacks": (13, 15, 18),
}
PLANS = [draw(seed, family) for family, seeds in SEEDS.items() for seed in seeds]


def run(plan: Plan, directory: Path, etcd: str | None, nursery: Nursery) -> None:
    verdict = run_plan(plan, directory, etcd, begin=nursery.begin)
    wrong = "\n".join(verdict.complaints)
    assert not wrong, f"{plan}\n{wrong}\nreplay it: {verdict.replay}\n{verdict.story[:TOLD_CHARACTERS]}"


def of_store(store: str) -> pytest.MarkDecorator:
    plans = [plan for plan in PLANS if plan.store == store]
    return pytest.mark.parametrize("plan", plans, ids=[f"{plan.family}-{plan.seed}" for plan in plans])


@of_store("c10d")
def test_a_storm_on_c10d(plan: Plan, tmp_path: Path, nursery: Nursery) -> None:
    run(plan, tmp_path, None, nursery)


@pytest.mark.slow
@pytest.mark.etcd
@of_store("etcd")
def test_a_storm_on_etcd(plan: Plan, tmp_path: Path, etcd: LocalEtcd, nursery: Nursery) -> None:
    run(plan, tmp_path, etcd.endpoint, nursery)


def test_these_seeds_have_something_of_everything() -> None:
    combinations = {(plan.family, plan.policy) for plan in PLANS}
    assert len(combinations) == len(FAMILIES) * len(POLICIES)
    assert {(plan.layout, plan.store) for plan in PLANS} == {(layout, store) for layout in LAYOUTS for store in STORES}
    assert {fault.kind for plan in PLANS for fault in plan.faults} >= {*RANK_KINDS, "term", "node"}
