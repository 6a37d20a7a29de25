"""Sums over all ranks in every step and takes the step from rank 0, so nobody can go on with a dead peer.

reduce.py STEPS PAUSE_S
"""

import sys
import time

import torch
import torch.distributed as dist

import softrun

steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(1)
step = torch.zeros(1, dtype=torch.int64)
for world in softrun.worlds():
    with world.process_group("gloo"):
        dist.broadcast(step, 0)
        while step.item() < steps:
            total = torch.ones(1)
            dist.all_reduce(total)
            if total.item() != world.world_size:
                raise AssertionError(f"summed {total.item()} over {world.world_size} ranks")
            time.sleep(pause_s)
            step += 1
            world.check(int(step))
print(f"reached {int(step)}", flush=True)
