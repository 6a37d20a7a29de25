"""Steps that take as long as they are told, without snapshots and with them in turn, and how long each took.

bench_snapshots.py DIRECTORY BYTES STEPS EVERY TURNS: DDP's case, so the ranks share BYTES of state. A step sleeps for
50 ms, as for a device, and all ranks then meet; the optimizer changes a small part of the state.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import softrun

STEP_S = 0.05
directory, (size, steps, every, turns) = Path(sys.argv[1]), map(int, sys.argv[2:])
torch.set_num_threads(1)
large = [torch.nn.Parameter(torch.ones(1 << 22)) for _ in range(size >> 24)]  # 16 MiB each
small = torch.nn.Parameter(torch.ones(1 << 16))
optimizer = torch.optim.SGD([small, *large], lr=0.01)
state = softrun.State(model=torch.nn.ParameterList([*large, small]), optimizer=optimizer, step=0)
times: dict[str, list[float]] = {"without": [], "with": []}
for world in softrun.worlds(state=state):
    with world.process_group():
        small.grad = torch.ones_like(small)
        state.snapshot(1 << 30)  # room is made for them
        for turn in range(2 * turns):
            kind = "with" if turn % 2 else "without"
            taken = 0
            for step in range(steps):
                began = time.perf_counter()
                time.sleep(STEP_S)
                dist.all_reduce(small.grad)
                small.grad.div_(world.world_size)
                optimizer.step()
                state.commit()
                if kind == "with" and step % every == 0:
                    taken += state.snapshot()
                times[kind].append(time.perf_counter() - began)
                world.check(state.step)
            dist.barrier()
            (directory / f"{turn}-{world.rank}").write_text(json.dumps(taken))
        (directory / f"times-{world.rank}").write_text(json.dumps(times))
