r"""Fit a line in blocks that succeed on all workers or raise on all: whoever is lost, the others agree on each step.

    python -m softrun --restart_policy soft --worker_failure record --nproc_per_node 4 examples/live_workers.py

Kill workers while it runs (add --pause 0.1): the others take the same step again without them. It is the first example
of "Fault tolerant distributed JAX"; there, too, whoever is lost does not come back. In live_train.py it does.
"""

import argparse
import time

import torch
import torch.distributed as dist

import softrun

EACH, RATE = 10, 1e-6  # samples of each worker in a step, and the learning rate

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step, to have time to watch")
args = parser.parse_args()

random = torch.Generator().manual_seed(42)  # the same data and the same first weight on all workers
inputs = torch.arange(-300.0, 300.0)[torch.randperm(600, generator=random)]
labels = 10 * inputs + torch.randn(600, generator=random)
weight = torch.randn(1, generator=random)

step = 0
while step < args.steps:
    try:
        with softrun.live_workers(step) as world:  # waits for all others; all get the same world
            world.process_group("gloo")  # built again if this is another world than the last one
            start = (step * world.world_size + world.rank) * EACH % len(inputs)
            x, y = inputs[start : start + EACH], labels[start : start + EACH]
            error = weight * x - y
            sums = torch.stack([(2 * error * x).mean(), error.square().mean()])
            dist.all_reduce(sums)  # raises if a worker is lost meanwhile
            gradient, loss = sums / world.world_size
            new_weight = weight - RATE * gradient  # not yet in place: the block may fail
    except softrun.PeerFailed as failure:  # on all members of the block
        print(f"step {step} failed: {failure}", flush=True)
    else:  # on all members of the block
        weight, step = new_weight, step + 1
        time.sleep(args.pause)

print(f"rank {world.rank} of {world.world_size}: step {step}, weight {weight.item():.2f}, loss {loss:.2f}", flush=True)
