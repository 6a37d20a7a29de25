"""Lightning, with nothing of softrun's in the script: restarted workers go on from the last checkpoint.

    python -m softrun --nproc_per_node 2 --max_restarts 3 examples/train_lightning.py --directory /tmp/lightning

Kill a worker while it runs (add --pause 0.1): all start again and lose at most 10 steps. Remove the directory to
train from the start. It needs pytorch-lightning.
"""

import argparse
import os
import time

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--directory", required=True, help="of the checkpoints")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step, to have time to watch")
args = parser.parse_args()


class Regression(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        time.sleep(args.pause)
        return mse_loss(self.layer(inputs).flatten(), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_start(self) -> None:
        print(f"process {os.getpid()}: starts at step {self.global_step}", flush=True)


inputs = torch.randn(640, 8, generator=torch.Generator().manual_seed(0))
data = TensorDataset(inputs, inputs @ torch.arange(1.0, 9.0))
trainer = Trainer(
    accelerator="auto",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    strategy="ddp",
    max_steps=args.steps,
    default_root_dir=args.directory,
    callbacks=[ModelCheckpoint(args.directory, save_last=True, every_n_train_steps=10)],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Regression(), DataLoader(data, batch_size=32), ckpt_path="last")  # "last": the newest one, if there is one
print(f"rank {trainer.global_rank} of {trainer.world_size}: step {trainer.global_step}", flush=True)
