"""Accelerate, with nothing of softrun's in the script: restarted workers go on from the last checkpoint.

    python -m softrun --nproc_per_node 2 --max_restarts 3 examples/train_accelerate.py --directory /tmp/accelerate

Kill a worker while it runs (add --pause 0.1): all start again and lose at most 10 steps. Remove the directory to
train from the start. It needs accelerate.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--directory", type=Path, required=True, help="of the checkpoints")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step, to have time to watch")
args = parser.parse_args()


class Progress:
    """Accelerate saves it and loads it beside the model."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


accelerator = Accelerator(cpu=not torch.cuda.is_available())
inputs = torch.randn(640, 8, generator=torch.Generator().manual_seed(0))
data = TensorDataset(inputs, inputs @ torch.arange(1.0, 9.0))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=32, shuffle=True))
progress = Progress()
accelerator.register_for_checkpointing(progress)

complete = sorted(args.directory.glob("*/complete"))
if complete:
    accelerator.load_state(str(complete[-1].parent))
print(f"process {os.getpid()}: starts at step {progress.step}", flush=True)
while progress.step < args.steps:
    for inputs, targets in batches:
        loss = mse_loss(model(inputs).flatten(), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        progress.step += 1
        time.sleep(args.pause)
        if progress.step % 10 == 0:
            checkpoint = args.directory / f"step-{progress.step:06}"
            accelerator.save_state(str(checkpoint))
            accelerator.wait_for_everyone()  # each rank saves its own random numbers
            if accelerator.is_main_process:
                (checkpoint / "complete").touch()
        if progress.step == args.steps:
            break
rank, ranks = accelerator.process_index, accelerator.num_processes
print(f"rank {rank} of {ranks}: step {progress.step}", flush=True)
accelerator.end_training()
