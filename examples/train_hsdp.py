r"""Train a small transformer with hybrid sharding: several replicas of the model, each sharded over two ranks.

    python -m softrun --restart_policy soft --worker_failure replace --max_restarts 3 \
        --nproc_per_node 4 --preload torch._dynamo,torch.distributed.fsdp examples/train_hsdp.py

Kill a worker (add 2000 for more steps): its replacement gets the shard from the other replica, and no loss changes.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import softrun

SHARDS, BATCH, LENGTH, WIDTH, WORDS = 2, 16, 32, 32, 64  # BATCH: sequences per step of the whole world
STEPS = int(sys.argv[1]) if sys.argv[1:] else 60
DEVICE = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
if DEVICE.type != "cpu":
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))


def build(mesh):
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), block, nn.Linear(WIDTH, WORDS)).to(DEVICE)
    for module in [*model, model]:
        fully_shard(module, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.003, capturable=DEVICE.type != "cpu")


state = softrun.State(step=0)
for world in softrun.worlds():
    with world.process_group():
        if world.world_size % SHARDS:
            world.wait_for_change()  # some replica is not whole: what it lost comes with the next world
        mesh = init_device_mesh(
            DEVICE.type, (world.world_size // SHARDS, SHARDS), mesh_dim_names=("replicate", "shard")
        )
        state.model, state.optimizer = build(mesh)
        state.sync(world)  # each rank gets the shard of its new place from a rank that has it
        while state.step < STEPS:
            draw = torch.Generator().manual_seed(state.step)
            starts = torch.randint(4000, (BATCH,), generator=draw)[world.rank :: world.world_size, None]
            words = (starts + torch.arange(LENGTH + 1)).square().to(DEVICE) % 61
            loss = nn.functional.cross_entropy(state.model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
            loss.backward()
            total = loss.detach().double()
            dist.all_reduce(total)
            world.check()  # unless it was aborted: NCCL does not raise then
            state.ready()  # whoever gets past that all-reduce knows that every rank has its gradients
            state.optimizer.step()
            state.commit()
            state.snapshot(every=10)  # if both replicas of a shard are lost, all go on from there
            state.optimizer.zero_grad()
            if world.rank == 0:
                print(f"step {state.step}, loss {total.item() / world.world_size:.6f}")
            world.check(state.step)
