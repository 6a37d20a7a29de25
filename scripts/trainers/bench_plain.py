"""Steps for ever and goes on from a checkpoint when it is started again: a trainer for launchers that restart.

bench_plain.py KIND STEP_S CHECKPOINT; see bench_steps.py. The checkpoint is written in every step, as nobody would in
earnest: what a restart loses in steps depends on that alone. Without a CHECKPOINT none is written.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from bench_steps import Steps

steps = Steps(sys.argv[1], float(sys.argv[2]))
checkpoint = Path(sys.argv[3]) if len(sys.argv) > 3 else None
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
done = int(checkpoint.read_text()) if checkpoint and checkpoint.exists() else 0
# Such workers have no number for their world: the time of its first rank is one that only rises.
start = torch.tensor([done, time.monotonic_ns() // 1_000_000])
dist.broadcast(start, 0)
step, world = (int(number) for number in start)
while True:
    total = steps.work()
    dist.all_reduce(total)
    step += 1
    steps.done(rank, world_size, world, step, total)
    if checkpoint and rank == 0:
        checkpoint.with_suffix(".new").write_text(str(step))
        checkpoint.with_suffix(".new").rename(checkpoint)
