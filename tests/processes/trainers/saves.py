"""Trains until it is told to leave, saves then, and goes on from there when it is started again. See test_preemption.

saves.py DIRECTORY WAY STEPS: WAY is how it is told: `callback` (softrun.on_leave), `alone` (the same, also if only its
node leaves), `leaving` (World.leaving), `jax`
(reached_preemption_sync_point), or `rfc` (the RFC's loop, which counts no steps). Each step of each rank is a line
`RUN STEP RANK SIZE` in DIRECTORY/steps-PID, and each save is one in DIRECTORY/saves.
"""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import softrun

directory, way, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
run, pause_s = os.environ["RUN"], float(os.environ.get("STEP_S", "0.02"))
saved = directory / "checkpoint"
torch.set_num_threads(1)
log = (directory / f"steps-{run}-{os.getpid()}").open("w", buffering=1)

model = torch.nn.Linear(4, 1)
state = softrun.State(model=model, step=0)
if saved.exists():
    state.load(saved)


def save(leave: softrun.Leave | None) -> None:
    """By collectives, as DCP does."""
    if "HANGS_SAVING" in os.environ:
        (directory / "hangs").touch()
        time.sleep(600)
    if "FAILS_SAVING" in os.environ:
        raise OSError("no room on the disk")
    if "DIES_SAVING" in os.environ and dist.get_rank() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    state.save(saved)
    alike = torch.tensor([float(state.step)])
    dist.all_reduce(alike)
    assert alike.item() == state.step * dist.get_world_size()
    if dist.get_rank() == 0:
        left = "" if leave is None else f" {leave.reason}, {leave.seconds_left:.1f} s"
        with (directory / "saves").open("a") as file:
            print(f"{run} {state.step}{left}", file=file)


def train_step() -> None:
    time.sleep(pause_s)
    total = torch.ones(1)
    dist.all_reduce(total)
    with torch.no_grad():
        for each in model.parameters():
            each += 1
    state.commit()
    print(run, state.step, dist.get_rank(), int(total), file=log)


def be_alone(leave: softrun.Leave) -> None:
    if leave.alone:
        (directory / f"alone-{os.getpid()}").write_text(str(state.step))
    else:
        save(leave)


if way in ("callback", "rfc"):
    softrun.on_leave(save)
if way == "alone":
    softrun.on_leave(be_alone, alone=True)
if way == "rfc":
    while state.step < steps:
        info = softrun.get_worker_info()
        try:
            dist.init_process_group("gloo", timeout=timedelta(seconds=30), **info.get_pg_parameters())
            at = torch.tensor([float(state.step)])
            dist.broadcast(at, 0)
            while state.step < steps and softrun.get_worker_event().worker_state == softrun.WorkerState.HEALTHY:
                train_step()
        except RuntimeError:
            print("interrupted", file=log)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
else:
    for world in softrun.worlds(state=state):
        with world.process_group("gloo"):
            while state.step < steps:
                train_step()
                if way == "jax" and softrun.reached_preemption_sync_point(state.step):
                    save(None)
                    raise SystemExit(softrun.RESUME)
                world.check(state.step)
                if way == "leaving" and world.leaving:
                    save(world.leaving)
                    raise SystemExit(softrun.RESUME)
(directory / f"done-{os.getpid()}").touch()
