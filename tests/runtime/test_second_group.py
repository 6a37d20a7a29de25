"""A trainer that destroys its default group and builds another in the same world."""

from __future__ import annotations

import os

import torch.distributed as dist
from gloo_ranks import Me, run

from softrun.runtime.groups.group_registry import track_groups


def test_each_default_group_of_a_world_has_keys_of_its_own() -> None:
    """torch gives the next one the same names: its ranks could read each other's old addresses."""

    def work(me: Me) -> list[int]:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": me.port, "RANK": me.rank, "WORLD_SIZE": me.size}
        os.environ.update({name: str(value) for name, value in place.items()}, TORCHELASTIC_USE_AGENT_STORE="True")
        track_groups()
        store = dist.TCPStore("127.0.0.1", me.port, is_master=False, wait_for_workers=False)
        keys = []
        for _ in range(3):
            dist.init_process_group("gloo")
            dist.barrier()
            keys.append(store.num_keys())
            dist.barrier()
            dist.destroy_process_group()
        return keys

    first, second, third = run(work, 2)[0]
    assert second - first == third - second > 0
