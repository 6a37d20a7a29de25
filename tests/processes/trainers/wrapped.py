"""Sums over all ranks in every step, wrapped; wrapped.py STEPS DIRECTORY. A file DIRECTORY/LOCAL_RANK says what befalls
that worker after its next step."""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from softrun.runtime import World
from softrun.runtime.inprocess import CallWrapper, Wrapper

TOTAL, FAULTS = int(sys.argv[1]), Path(sys.argv[2])
SECOND = timedelta(seconds=1)
torch.set_num_threads(1)
done = 0  # what lives on in this process


def befall(what: str) -> None:
    match what:
        case "exception":
            raise ValueError("the loss is not a number")
        case "sleep":
            time.sleep(3600)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)


@Wrapper(soft_timeout=2 * SECOND, hard_timeout=3 * SECOND, termination_grace_time=0 * SECOND)
def train(call: CallWrapper, world: World) -> int:
    global done
    dist.init_process_group("gloo")
    newest = torch.tensor([done])
    dist.all_reduce(newest, op=dist.ReduceOp.MAX)
    done = int(newest)
    while done < TOTAL:
        time.sleep(0.005)
        dist.all_reduce(torch.ones(1))
        done += 1
        world.check(done)
        fault = FAULTS / os.environ["LOCAL_RANK"]
        if fault.exists():
            what = fault.read_text()
            fault.unlink()
            befall(what)
    return call.iteration


train()
