"""Trains with a State, and tells a digest of all its weights and buffers at the end. See test_healing.

healed.py DIRECTORY SIZE STEPS [STEP:RANK:WHERE ...]: in worlds of SIZE workers only, so that every run computes the
same. Whoever has RANK in that step dies there, once: in the `forward` pass, in the `backward` pass, or `before` the
optimizer's step.

The weights depend on buffers that are the same on all ranks (`mean`). A BatchNorm's differ: DDP sends the first rank's
to all before each forward pass. Those are told apart from the rest, since they are lost with the first rank.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import softrun

directory, (size, steps), deaths = Path(sys.argv[1]), map(int, sys.argv[2:4]), sys.argv[4:]
torch.set_num_threads(1)


def die_if_due(where):
    due = f"{state.step}:{dist.get_rank()}:{where}"
    if due in deaths and not (mark := directory / f".{due}").exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Center(torch.nn.Module):
    """Takes the mean over all ranks, as SyncBatchNorm does on GPUs: a loss mostly strikes in its collective."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, inputs):
        self.passes += 1
        die_if_due("forward")
        mean = inputs.detach().mean(0)
        dist.all_reduce(mean)
        self.mean.lerp_(mean / size, 0.1)
        if inputs.requires_grad:
            inputs.register_hook(lambda _: die_if_due("backward"))
        return inputs - self.mean


torch.manual_seed(int(os.environ["LOCAL_RANK"]))  # each rank has other weights at first
model = torch.nn.Sequential(
    torch.nn.Linear(8, 64), torch.nn.Dropout(0.3), torch.nn.BatchNorm1d(64), Center(), torch.nn.Linear(64, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = softrun.State(
    model=model,
    optimizer=optimizer,
    scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999),
    sampler=softrun.ElasticSampler(range(96), global_batch_size=12, seed=4),
    random=softrun.RandomNumbers(seed=2),
    step=0,
)
losses = (directory / f"losses-{os.getpid()}").open("w", buffering=1)
for world in softrun.worlds(state=state):
    with world.process_group():
        if world.world_size < size:
            world.wait_for_change()
        # Otherwise it sorts its buckets anew after its first step, and gloo then adds up in another order.
        parallel = DistributedDataParallel(model, find_unused_parameters=True)
        while state.step < steps:
            for part in state.sampler:
                inputs = torch.tensor(part, dtype=torch.float32)[:, None] * torch.linspace(-0.01, 0.01, 8)
                loss = (parallel(inputs) - inputs.sin().sum(1, keepdim=True)).square().mean()
                loss.backward()
                losses.write(f"{state.step} {world.rank} {loss.item().hex()}\n")  # before the step: none is missing
                die_if_due("before")
                optimizer.step()
                state.scheduler.step()
                state.commit()
                optimizer.zero_grad()  # here, so that an interrupted step leaves gradients
                time.sleep(0.003)
                world.check(state.step)


def digest(tensors):
    return hashlib.sha256(repr([each.tolist() for each in tensors]).encode()).hexdigest()


center = model[3]
(directory / f"told-{world.rank}-{os.getpid()}").write_text(
    f"{state.step} {state.sampler.steps} {center.passes} {digest([*model.parameters(), center.mean])} "
    f"{model[2].num_batches_tracked} {digest(model[2].buffers())}"
)
