"""Lightning under the soft policy: the Trainer's model, optimizer, epochs and samples come through every change.

    python -m softrun --restart_policy soft --nproc_per_node 2 examples/train_lightning_soft.py --directory /tmp/soft

Kill a worker while it runs (add --pause 0.1): the other one keeps its process, and no sample is lost or repeated. Stop
it with SIGTERM, and start it again: it goes on after the same step. It needs pytorch-lightning.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from pytorch_lightning import LightningModule, Trainer
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import softrun
from softrun.runtime.integrations.lightning import lightning_callback, lightning_settings

parser = argparse.ArgumentParser()
parser.add_argument("--directory", type=Path, required=True, help="of the checkpoints")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step, to have time to watch")
args = parser.parse_args()
args.directory.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)


class Regression(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        inputs, targets, numbers = batch
        time.sleep(args.pause)
        share = world.share(sampler.batch_size)
        print(f"world {world.round} step {sampler.steps} epoch {sampler.epoch} takes {numbers.tolist()}", file=log)
        return mse_loss(self.layer(inputs).flatten(), targets) * share.weight

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


log = (args.directory / f"samples-{os.getpid()}").open("a", buffering=1)
inputs = torch.randn(320, 8, generator=torch.Generator().manual_seed(0))
data = TensorDataset(inputs, inputs @ torch.arange(1.0, 9.0), torch.arange(len(inputs)))
model = Regression()
sampler = softrun.ElasticSampler(data, global_batch_size=32)
state = softrun.State(model=model, sampler=sampler)
softrun.on_leave(lambda _: state.save(args.directory))
for world in softrun.worlds():
    with world.process_group():
        trainer = Trainer(
            **lightning_settings(world),
            callbacks=[lightning_callback(world, state, sampler, checkpoints=args.directory)],
            accelerator="auto",
            strategy="ddp",
            max_epochs=args.epochs,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, DataLoader(data, batch_sampler=sampler))
        print(
            f"process {os.getpid()}: rank {world.rank} of {world.world_size}: epoch {trainer.current_epoch}, "
            f"step {trainer.global_step}, loss {mse_loss(model.layer(inputs).flatten(), data.tensors[1]):.6f}",
            flush=True,
        )
