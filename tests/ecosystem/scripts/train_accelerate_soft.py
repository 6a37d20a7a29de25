"""Train through changes of the world with Accelerate, and write down which samples each step takes.

train_accelerate_soft.py --directory DIRECTORY --epochs N --pause SECONDS
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import softrun
from softrun.runtime.integrations.accelerate import accelerator_of

parser = argparse.ArgumentParser()
parser.add_argument("--directory", type=Path, required=True)
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--pause", type=float, required=True)
args = parser.parse_args()
args.directory.mkdir(exist_ok=True)
torch.set_num_threads(1)
torch.manual_seed(0)

log = (args.directory / f"samples-{os.getpid()}").open("a", buffering=1)
inputs = torch.randn(320, 8, generator=torch.Generator().manual_seed(0))
data = TensorDataset(inputs, inputs @ torch.arange(1.0, 9.0), torch.arange(len(inputs)))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
sampler = softrun.ElasticSampler(data, global_batch_size=32)
loader = DataLoader(data, batch_sampler=sampler)
state = softrun.State(model=model, optimizer=optimizer, sampler=sampler)
softrun.on_leave(lambda _: state.save(args.directory))
state.load(args.directory)
for world in softrun.worlds(state=state):
    with world.process_group():
        accelerator = accelerator_of(world, cpu=True)
        assert (accelerator.process_index, accelerator.num_processes) == (world.rank, world.world_size)
        parallel, stepping = accelerator.prepare(model, optimizer)
        while sampler.epoch < args.epochs:
            for features, targets, numbers in loader:
                print(
                    f"world {world.round} step {sampler.steps} epoch {sampler.epoch} takes {numbers.tolist()}", file=log
                )
                loss = mse_loss(parallel(features).flatten(), targets) * world.share(sampler.batch_size).weight
                stepping.zero_grad()
                accelerator.backward(loss)
                stepping.step()
                state.commit()
                time.sleep(args.pause)
                world.check(sampler.steps)
        print(f"process {os.getpid()}: rank {world.rank} of {world.world_size}: step {sampler.steps}", flush=True)
