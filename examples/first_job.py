"""A first job: fit a line, slowly, whatever happens to the other workers. The tutorial in docs/ walks through it.

    python -m softrun --restart_policy soft --nproc_per_node 2 examples/first_job.py

The number of steps may follow; there are 900, for 45 s. It needs numpy, without which torch cannot broadcast objects.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import softrun

STEPS = int(sys.argv[1]) if sys.argv[1:] else 900

# Everything made before the loop stays in memory when the world changes.
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
step = 0

for world in softrun.worlds():
    with world.process_group():
        # Rank 0 is always a survivor: everyone takes the state from it.
        state = [model.state_dict(), optimizer.state_dict(), step]
        dist.broadcast_object_list(state, src=0)
        model.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
        step = state[2]
        print(f"world {world.round}: rank {world.rank} of {world.world_size} goes on from step {step}", flush=True)
        parallel = DistributedDataParallel(model)
        while step < STEPS:
            x = torch.rand(64, 1)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(parallel(x), 3 * x + 1)
            loss.backward()
            optimizer.step()
            step += 1
            time.sleep(0.05)  # to have time to watch
            world.check(step)  # ends this pass if the world has changed

print(f"done: step {step}, loss {loss.item():.4f}", flush=True)
