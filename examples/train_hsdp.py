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
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003, capturable=DEVICE.type != "cpu")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # changes no parameter, but now the optimizer has its state, which is healed with them
    states = (value.detach() for p in model.parameters() for value in [p, *optimizer.state[p].values()])
    return model, optimizer, [each.to_local() if hasattr(each, "to_local") else each for each in states]


def gather(number):
    numbers = [torch.zeros(1, dtype=torch.float64, device=DEVICE) for _ in range(dist.get_world_size())]
    dist.all_gather(numbers, torch.tensor([number], dtype=torch.float64, device=DEVICE))
    return [each.item() for each in numbers]


# How many steps it has, the shard that this rank holds, its tensors, and the optimizer while it has all gradients.
step, part, held, ready = -1, -1, None, None
for world in softrun.worlds():
    with world.process_group():
        newest = int(max(gather(step)))
        if step < newest and ready:  # another rank has applied these gradients: so does this one
            ready.step()
            step += 1
        if newest == STEPS:
            continue  # there is nothing left to do
        if world.world_size % SHARDS:
            world.wait_for_change()  # some replica is not whole: what it lost comes with the next world
        mesh = init_device_mesh(
            DEVICE.type, (world.world_size // SHARDS, SHARDS), mesh_dim_names=("replicate", "shard")
        )
        model, optimizer, tensors = build(mesh)
        parts = gather(part if step == newest else -1)
        for rank in range(world.world_size) if newest >= 0 else ():  # each gets the shard of its new place
            if (wanted := rank % SHARDS) not in parts:
                raise RuntimeError(f"shard {wanted} is lost with all ranks that had it: resume from a checkpoint")
            source = rank if parts[rank] == wanted else parts.index(wanted)
            for to, tensor in zip(tensors, held or tensors, strict=True):
                if world.rank == source:
                    to.copy_(tensor) if rank == source else dist.send(tensor, rank)
                elif world.rank == rank:
                    dist.recv(to, source)
        step, part, held, ready = max(0, newest), world.rank % SHARDS, tensors, None
        while step < STEPS:
            starts = torch.randint(4000, (BATCH,), generator=torch.Generator().manual_seed(step))
            words = (starts[world.rank :: world.world_size, None] + torch.arange(LENGTH + 1)).square().to(DEVICE) % 61
            loss = nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
            loss.backward()
            ready = optimizer
            losses = gather(loss.item())  # whoever gets past this knows that every rank has its gradients
            world.check()  # unless it was aborted: NCCL does not raise then
            optimizer.step()
            optimizer.zero_grad()
            step, ready = step + 1, None
            if world.rank == 0:
                print(f"step {step}, loss {sum(losses) / len(losses):.6f}")
            world.check(step)
