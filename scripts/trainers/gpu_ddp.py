"""Trains a small model with DistributedDataParallel, which every world builds again. See scripts/check_gpu.py.

gpu_ddp.py BACKEND DIRECTORY
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from gpu_device import device_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import softrun

backend = sys.argv[1]
device = device_of(backend, int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = torch.zeros(1, dtype=torch.int64, device=device)


def newest() -> int:
    """The rank from which the others take their state."""
    steps = [torch.zeros_like(step) for _ in range(dist.get_world_size())]
    dist.all_gather(steps, step)
    return int(torch.cat(steps).argmax())


def check_that_all_agree() -> None:
    norm = torch.stack([parameter.detach().double().norm() for parameter in model.parameters()]).norm()
    norms = [torch.zeros_like(norm) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, norm)
    world.check()
    if len({each.item() for each in norms}) != 1:
        raise AssertionError(f"the ranks have different parameters after step {step.item()}: {norms}")


for world in softrun.worlds():
    with world.process_group(backend):
        source = newest()
        for tensor in [step, *(parameter.data for parameter in model.parameters())]:
            dist.broadcast(tensor, source)
        replica = DistributedDataParallel(model)
        while True:
            inputs = torch.randn(32, 64, device=device)
            optimizer.zero_grad()
            (replica(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            world.check()  # an aborted collective of NCCL leaves the gradients as they are
            optimizer.step()
            step += 1
            if step.item() % 10 == 0:
                check_that_all_agree()
            time.sleep(0.005)
            world.check(int(step))
