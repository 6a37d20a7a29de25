"""live_workers in a Wrapper: one loop, which the Wrapper begins again, and one meaning of "world".

live_wrapped.py DIRECTORY: rank 1 is killed in step 20 and raises in step 40, once each in the job. Step 30 waits for
the replacement: otherwise the Wrapper might begin again while that exception is on its way.
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import softrun
from softrun.runtime import inprocess

directory, steps = Path(sys.argv[1]), 60
torch.set_num_threads(1)
step, workers = 0, 3


def strikes(name: str) -> bool:
    """Once in the job."""
    struck = (directory / name).exists()
    (directory / name).touch()
    return not struck


@inprocess.Wrapper(initialize=inprocess.initialize.RetryController(max_iterations=9, min_world_size=2))
def train() -> int:
    global step
    while step < steps:
        try:
            with softrun.live_workers(step) as world:
                world.process_group("gloo")
                if world.changed:
                    furthest = torch.tensor([step])
                    dist.all_reduce(furthest, op=dist.ReduceOp.MAX)
                    step = int(furthest)
                if step == 20 and world.rank == 1 and strikes("kill"):
                    os.kill(os.getpid(), signal.SIGKILL)
                if step == 40 and world.rank == 1 and strikes("raise"):
                    raise ValueError("a bad batch")
                dist.all_reduce(torch.ones(1))
        except softrun.PeerFailed:
            continue
        except ValueError:
            continue
        if step != 30 or world.world_size == workers:
            step += 1
    return step


print(f"returned {train()}", flush=True)
