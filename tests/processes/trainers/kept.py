"""Trains with a State that keeps snapshots, and tells a digest of all its weights at the end. See test_snapshots.

kept.py DIRECTORY KIND SIZE STEPS EVERY: KIND is `replicated` or `sharded`; in worlds of SIZE workers only, so that
every run computes the same.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import softrun

directory, kind, (size, steps, every) = Path(sys.argv[1]), sys.argv[2], map(int, sys.argv[3:])
torch.set_num_threads(1)


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 1))
    if kind == "sharded":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def whole(tensor: torch.Tensor) -> list[float]:
    return getattr(tensor, "full_tensor", lambda: tensor)().tolist()


state = softrun.State(random=softrun.RandomNumbers(seed=2), step=0)
for world in softrun.worlds():
    with world.process_group():
        if world.world_size < size:
            world.wait_for_change()
        state.model, state.optimizer = build()
        state.sync(world)
        (directory / f"began-{world.round}-{world.rank}").write_text(str(state.step))
        while state.step < steps:
            inputs = torch.randn(16, 8)
            state.optimizer.zero_grad()
            (state.model(inputs) - inputs.sin().sum(1, keepdim=True)).square().mean().backward()
            if kind == "replicated":
                for each in state.model.parameters():
                    dist.all_reduce(each.grad)
            state.optimizer.step()
            state.commit()
            state.snapshot(every)
            time.sleep(0.005)
            world.check(state.step)
        digest = hashlib.sha256(repr([whole(each) for each in state.model.state_dict().values()]).encode()).hexdigest()
        (directory / f"ended-{world.rank}-{os.getpid()}").write_text(f"{state.step} {digest}")
