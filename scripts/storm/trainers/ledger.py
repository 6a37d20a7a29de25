"""Writes down which samples each step takes, and who has committed it (`storm.ledger`).

ledger.py DIRECTORY LENGTH BATCH LOADERS: a dataset of LENGTH samples, in global batches of BATCH, loaded by so many
processes. It trains epoch after epoch until DIRECTORY/finish is there. Whoever comes to a phase of a step and finds
DIRECTORY/kill-PHASE takes it away, and is killed.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import softrun

directory, (length, batch, loaders) = Path(sys.argv[1]), map(int, sys.argv[2:])
run = int(os.environ["LEDGER_RUN"])
torch.set_num_threads(1)
ledger = os.open(directory / f"{run}-{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
SAVED_EACH, KEPT_EACH = 25, 4


def note(what: str, **more: object) -> None:
    line = {"what": what, "run": run, "round": world.round, "epoch": sampler.epoch, "step": sampler.steps, **more}
    os.write(ledger, f"{json.dumps(line)}\n".encode())


def reach(phase: str) -> None:
    try:
        (directory / f"kill-{phase}").rename(directory / f"did-kill-{phase}-{os.getpid()}")
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def is_to_finish() -> bool:
    """All ranks know the same of it."""
    found = torch.tensor([float((directory / "finish").exists())])
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found)


def save(leave: softrun.Leave) -> None:
    reach("leave")
    state.save(directory / "checkpoint")
    note("leaves", reason=leave.reason)


model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
dataset = range(length)
sampler = softrun.ElasticSampler(dataset, batch, seed=5)
loader = DataLoader(dataset, batch_sampler=sampler, num_workers=loaders)
state = softrun.State(model=model, optimizer=optimizer, sampler=sampler)
state.load(directory / "checkpoint")
softrun.on_leave(save)
done = False
for world in softrun.worlds():
    with world.process_group("gloo"):
        reach("built")
        state.sync(world, on_progress=lambda _: reach("healing"))
        reach("synced")
        while not done:
            for samples in loader:
                reach("fetched")
                share = world.share(sampler.batch_size)
                taken = samples.tolist() if len(share) else []
                note("takes", samples=taken)
                inputs = samples.float().unsqueeze(1).expand(-1, 4) / length
                optimizer.zero_grad()
                loss = model(inputs).square().mean() * share.weight
                reach("forward")
                loss.backward()
                reach("backward")
                for each in model.parameters():
                    dist.all_reduce(each.grad)
                count = torch.tensor([float(len(taken))])
                dist.all_reduce(count)
                assert count == sampler.batch_size, count
                reach("reduced")
                optimizer.step()
                reach("stepped")
                note("commits")
                state.commit()
                reach("committed")
                state.snapshot(every=KEPT_EACH)
                reach("kept")
                if sampler.steps % SAVED_EACH == 0:
                    state.save(directory / "checkpoint")
                reach("saved")
                time.sleep(0.01)
                world.check(sampler.steps)
            done = is_to_finish()
