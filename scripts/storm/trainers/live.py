"""Takes steps in blocks of live_workers, and records its calls. See storm/live.py and test_live.

live.py DIRECTORY: until DIRECTORY/finish is there. Whoever comes to a phase of a step and finds DIRECTORY/WHAT-PHASE
takes it away, and is killed (`kill`), raises (`raise`), hangs (`hang`), or has another one raise in the next block
before it comes there itself (`lag`). With WRAPPED=1 the steps are taken in a function that a Wrapper begins again in
each world.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import softrun
from softrun.runtime import inprocess
from softrun.testing import record

directory = Path(sys.argv[1])
timeout = float(os.environ.get("BLOCK_TIMEOUT", "0")) or None
torch.set_num_threads(1)
record(directory / "history")
log = (directory / f"log-{os.getpid()}").open("w", buffering=1)
state = torch.zeros(2, dtype=torch.float64)  # how many steps were taken, and by how many workers altogether
done = False


def reach(phase):
    for what in ("kill", "raise", "hang", "lag"):
        try:
            (directory / f"{what}-{phase}").rename(directory / f"did-{what}-{phase}-{os.getpid()}")
        except FileNotFoundError:
            continue
        if what == "raise":
            raise ValueError(f"a fault {phase}")
        if what == "hang":
            time.sleep(1000)
        if what == "lag":
            (directory / "raise-before").touch()
            return True
        os.kill(os.getpid(), signal.SIGKILL)
    return False


def take_steps():
    global world, done, state
    while not done:
        step = int(state[0])
        try:
            with softrun.live_workers(step, block_timeout=timeout) as world:
                reach("begun")
                world.process_group("gloo")
                reach("built")
                if world.changed:
                    dist.broadcast(state, src=world.source.rank)
                sums = torch.tensor([1.0, float((directory / "finish").exists())])
                reach("before")
                dist.all_reduce(sums)
                lags = reach("after")
                time.sleep(0.005)
        except (softrun.PeerFailed, ValueError) as error:
            log.write(f"{step} {type(error).__name__}: {error}\n")
            continue
        reach("ended")
        if lags:
            time.sleep(1)
        state += torch.tensor([1, sums[0]])
        done = bool(sums[1])


if os.environ.get("WRAPPED"):
    patient = inprocess.initialize.RetryController(max_iterations=1000, min_world_size=1)
    take_steps = inprocess.Wrapper(initialize=patient)(take_steps)
take_steps()
log.write("done\n")
(directory / f"told-{world.rank}-{os.getpid()}").write_text(" ".join(f"{number:g}" for number in state.tolist()))
