"""Trains a model that is sharded over all ranks, with snapshots, and tells when it went on in each world, and where.

bench_shards.py DIRECTORY SIZE BYTES EVERY: worlds of SIZE ranks, which share BYTES of weights and AdamW's two means of
them. It trains until its directory has a file `stop`.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import softrun

directory, (size, total, every) = Path(sys.argv[1]), map(int, sys.argv[2:])
torch.set_num_threads(1)
WIDTH = 1024
LAYERS = max(total // (3 * 4 * WIDTH * WIDTH), 1)


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
    mesh = init_device_mesh("cpu", (size,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh), torch.optim.AdamW(model.parameters(), lr=1e-4)


state = softrun.State(step=0)
for world in softrun.worlds():
    with world.process_group():
        if world.world_size < size:
            world.wait_for_change()
        entered = time.monotonic()
        state.model, state.optimizer = build()
        built = time.monotonic()
        received = state.sync(world)
        synced = time.monotonic()
        began_at = state.step
        while True:
            state.optimizer.zero_grad()
            state.model(torch.ones(1, WIDTH)).square().mean().backward()
            state.optimizer.step()
            state.commit()
            if state.step == began_at + 1:
                marks = [entered, built, synced, time.monotonic()]
                (directory / f"{world.round}-{world.rank}").write_text(json.dumps([marks, began_at, received]))
            state.snapshot(every)
            stop = torch.tensor((directory / "stop").exists(), dtype=torch.int)
            dist.all_reduce(stop)
            if stop:
                break
            world.check(state.step)
