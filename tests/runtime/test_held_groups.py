"""A model that is freed after its group was destroyed: torch alone hangs there in some of a hundred times."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import Me, run
from torch.nn.parallel import DistributedDataParallel

from softrun.runtime.groups.group_registry import track_groups
from softrun.runtime.groups.held_groups import let_go

TIMES = 100


def train(me: Me, store: dist.Store) -> None:
    dist.init_process_group("gloo", store=store, rank=me.rank, world_size=me.size)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    for _ in range(4):
        model(torch.ones(4, 8)).sum().backward()
    dist.destroy_process_group()


@pytest.mark.slow
def test_a_model_is_not_the_last_to_hold_its_group() -> None:
    def work(me: Me) -> str:
        track_groups()
        store = me.store("all")
        for turn in range(TIMES):
            train(me, dist.PrefixStore(str(turn), store))
        let_go()
        return "through"

    assert run(work, 3) == ["through"] * 3
