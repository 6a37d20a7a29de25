"""Steps for ever through changes of the world, in the same process: a trainer for softrun's soft policy.

bench_soft.py KIND STEP_S; see bench_steps.py.
"""

import sys

import torch
import torch.distributed as dist
from bench_steps import Steps

import softrun

steps = Steps(sys.argv[1], float(sys.argv[2]))
step = 0
for world in softrun.worlds():
    with world.process_group("gloo"):
        start = torch.tensor([step])
        dist.broadcast(start, 0)
        step = int(start)
        while True:
            total = steps.work()
            dist.all_reduce(total)
            step += 1
            steps.done(world.rank, world.world_size, world.round, step, total)
            world.check(step)
