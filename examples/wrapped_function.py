r"""A whole training function that starts over, in its process, on every healthy rank after a fault on any rank.

    python -m softrun --restart_policy soft --worker_failure replace --max_restarts 3 \
        --nproc_per_node 2 examples/wrapped_function.py

Kill a worker while it runs (add --pause 0.1), stop it with SIGSTOP, or raise an error in one rank: `train` is called
again everywhere, and what stands outside of it is still in memory.
"""

import argparse
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from softrun import CallWrapper, Wrapper
from softrun.runtime.inprocess import RetryController

BATCH = 64

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step, to have time to watch")
args = parser.parse_args()
torch.manual_seed(0)
truth = torch.arange(1.0, 9.0)  # what is to be learned
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0


@Wrapper(
    initialize=RetryController(max_iterations=10),  # after more than ten calls the job has failed
    soft_timeout=timedelta(seconds=10),  # a rank without progress: all others start over
    hard_timeout=timedelta(seconds=20),  # and it is ended
)
def train(call: CallWrapper) -> float:
    global step
    print(f"process {os.getpid()}: call {call.iteration} of train, step {step}", flush=True)
    dist.init_process_group("gloo")  # RANK, WORLD_SIZE and the like are set
    rank, world_size = dist.get_rank(), dist.get_world_size()
    done = torch.tensor(step)
    dist.broadcast(done, src=0)  # rank 0 has been here before if anybody has
    parallel = DistributedDataParallel(model)  # takes the weights of rank 0
    step = int(done)
    loss = torch.tensor(0.0)
    while step < args.steps:
        inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))[rank::world_size]
        loss = mse_loss(parallel(inputs).flatten(), inputs @ truth)
        optimizer.zero_grad()
        loss.backward()
        with call.atomic():  # no restart begins in here: weights and step belong together
            optimizer.step()
            step += 1
        call.ping()  # this rank makes progress
        time.sleep(args.pause)
    return loss.item()


loss = train()
print(f"process {os.getpid()}: step {step}, loss {loss:.1e}", flush=True)
