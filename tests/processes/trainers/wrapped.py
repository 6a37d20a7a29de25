"""Sums over all ranks in every step, wrapped; wrapped.py STEPS DIRECTORY. A file DIRECTORY/PID says how many have one,
and what befalls that worker after the first step that finds them all. Each writes a line into DIRECTORY/PID.iterations
at the start of every iteration."""

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
from softrun.runtime.inprocess import AbortProcessGroups, CallWrapper, Compose, State, Wrapper

TOTAL, FAULTS = int(sys.argv[1]), Path(sys.argv[2])
SECOND = timedelta(seconds=1)
torch.set_num_threads(1)
done = 0  # what lives on in this process
abort_hangs = False


def await_mark(name: str) -> None:
    while not (FAULTS / name).exists():
        time.sleep(0.01)


def befall(what: str, call: CallWrapper) -> None:
    global abort_hangs
    match what:
        case "exception":
            await_mark("ready")  # to raise the second, out of reach of what the first one aborts
            (FAULTS / "raised").touch()
            raise ValueError("the loss is not a number")
        case "second exception":
            (FAULTS / "ready").touch()
            await_mark("raised")
            time.sleep(0.1)  # others know by now
            raise ValueError("here as well")
        case "hang in abort":
            abort_hangs = True
            raise ValueError("the abort that follows hangs")
        case "sleep":
            time.sleep(3600)
        case "livelock":
            call.ping()
            while True:
                pass
        case "lock":
            ctypes.PyDLL(None).sleep(3600)  # it holds the GIL
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)


def note(state: State) -> None:
    with (FAULTS / f"{os.getpid()}.iterations").open("a") as lines:
        lines.write(f"{state.iteration} {type(state.fn_exception).__name__}\n")


def hang_if_told(state: State) -> None:
    if abort_hangs:
        time.sleep(3600)


@Wrapper(
    initialize=note,
    abort=Compose(hang_if_told, AbortProcessGroups()),
    soft_timeout=2 * SECOND,
    hard_timeout=3 * SECOND,
    termination_grace_time=0 * SECOND,
    last_call_wait=SECOND / 2,
)
def train(call: CallWrapper, world: World) -> int:
    global done
    dist.init_process_group("gloo")
    newest = torch.tensor([done])
    dist.all_reduce(newest, op=dist.ReduceOp.MAX)
    done = int(newest)
    while done < TOTAL:
        time.sleep(0.005)
        fault = FAULTS / str(os.getpid())
        due = fault.exists()
        all_due = torch.tensor([int(due)])
        dist.all_reduce(all_due)
        done += 1
        world.check(done)
        if due:
            together, what = fault.read_text().split(maxsplit=1)
            if int(together) == int(all_due):
                fault.unlink()
                befall(what, call)
    return call.iteration


train()
