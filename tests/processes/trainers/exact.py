"""Trains a model of whole numbers, so that it does not matter in which order the ranks' parts are summed; wrapped.

exact.py DIRECTORY

A file DIRECTORY/LOCAL_RANK says what befalls that worker after its next step. Once there is DIRECTORY/stop all finish
together, and rank 0 writes DIRECTORY/result: the number of steps, then the model.
"""

import ctypes
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from softrun.runtime import World
from softrun.runtime.inprocess import Wrapper

DIRECTORY = Path(sys.argv[1])
BATCH = 12
torch.set_num_threads(1)
trained = torch.zeros(9, dtype=torch.int64)  # what lives on in this process: the model, and the steps that it has seen


def befall(what: str) -> None:
    match what:
        case "exception":
            raise ValueError("the loss is not a number")
        case "sleep":
            time.sleep(3600)
        case "hold the GIL":
            ctypes.PyDLL(None).sleep(3600)
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)


def take_from_the_furthest(world: World) -> None:
    """Those that were interrupted before the last step ended are a step behind, newcomers are at the beginning."""
    seen = [torch.zeros_like(trained) for _ in range(world.world_size)]
    dist.all_gather(seen, trained)
    trained.copy_(max(seen, key=lambda other: int(other[-1])))


@Wrapper(
    soft_timeout=timedelta(seconds=0.5),
    hard_timeout=timedelta(seconds=1),
    termination_grace_time=timedelta(seconds=0.1),
)
def train(world: World) -> None:
    dist.init_process_group("gloo")
    take_from_the_furthest(world)
    while True:
        model, step = trained[:-1], int(trained[-1])
        own = [(model * (item + 1) + step) % 1009 for item in range(world.rank, BATCH, world.world_size)]
        total = torch.cat([sum(own, torch.zeros_like(model)), torch.tensor([(DIRECTORY / "stop").exists()])])
        dist.all_reduce(total)
        trained.copy_(torch.cat([(model * 7 + total[:-1]) % 1000003, torch.tensor([step + 1])]))
        time.sleep(0.01)
        world.check(step + 1)
        if total[-1]:
            return
        fault = DIRECTORY / os.environ["LOCAL_RANK"]
        if fault.exists():
            what = fault.read_text()
            fault.unlink()
            befall(what)


train()
if os.environ["RANK"] == "0":
    (DIRECTORY / "part").write_text(" ".join(str(int(number)) for number in (trained[-1], *trained[:-1])))
    (DIRECTORY / "part").rename(DIRECTORY / "result")
