"""Steps for ever through changes of the world, in the same process: a trainer for softrun's soft policy.

bench_soft.py KIND STEP_S; see bench_steps.py.
"""

import sys

import torch
import torch.distributed as dist
from bench_steps import Steps

import softrun

steps = Steps(sys.argv[1], float(sys.argv[2]))
step = torch.zeros(1, dtype=torch.int64)
for world in softrun.worlds():
    with world.process_group("gloo"):
        dist.broadcast(step, 0)
        while True:
            total = steps.work()
            dist.all_reduce(total)
            step += 1
            steps.done(world.rank, world.world_size, world.round, int(step), total)
            world.check(int(step))
