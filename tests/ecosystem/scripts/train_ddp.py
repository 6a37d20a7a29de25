"""Fit a line with DistributedDataParallel, as a user of torchrun writes it: it knows nothing of softrun.

Rank 0 saves a checkpoint after each epoch, and a script that is started again goes on from there. With `--die_once` a
worker is lost in the middle of an epoch, once.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(256, 8, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(8, 1, generator=generator))


def save(path: Path, state: dict[str, object]) -> None:
    """All or nothing: who is killed while it saves leaves the last checkpoint as it was."""
    unfinished = path.with_suffix(".tmp")
    torch.save(state, unfinished)
    unfinished.replace(path)


def die_once(marker: Path) -> None:
    """SIGKILL, as the kernel sends it to who takes too much memory. The marker stays, so that the next one lives."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--die_once", type=Path, help="a marker file; without it, nobody dies")
    parser.add_argument("--die_in_epoch", type=int, default=3)
    args = parser.parse_args()

    dist.init_process_group("gloo")  # by env://
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dying = args.die_once is not None and rank == world_size - 1
    torch.manual_seed(0)
    data = make_data()
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    first_epoch = 0
    if args.checkpoint.exists():
        state = torch.load(args.checkpoint)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1
    if rank == 0:
        restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print(f"{world_size} workers start with epoch {first_epoch} after {restarts} restarts", flush=True)

    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        for batch, (inputs, targets) in enumerate(loader):
            if dying and epoch == args.die_in_epoch and batch == len(loader) // 2:
                die_once(args.die_once)
            optimizer.zero_grad()
            mse_loss(model(inputs), targets).backward()
            optimizer.step()
        if rank == 0:
            save(
                args.checkpoint,
                {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
            )
            with torch.no_grad():
                inputs, targets = data.tensors
                print(f"epoch {epoch} loss {mse_loss(model.module(inputs), targets):.6f}", flush=True)
    del model  # torch 2.13 may wait for ever, for its own thread, where a model is the last to hold a gloo group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
