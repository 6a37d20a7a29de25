"""Train Lightning's own demonstration model with its `ddp` strategy, and say what Lightning made of the launcher.

Lightning starts workers of its own where it takes itself for launched by nobody. Here it must find torchelastic, by the
environment of the workers, and keep to the two that there are.
"""

from __future__ import annotations

import argparse

from pytorch_lightning import Trainer
from pytorch_lightning.demos.boring_classes import BoringModel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", required=True)
    args = parser.parse_args()

    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=10,
        limit_val_batches=2,
        default_root_dir=args.directory,  # where rank 0 saves the checkpoint
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(BoringModel())
    environment = type(trainer.strategy.cluster_environment).__name__
    print(f"rank {trainer.global_rank} of {trainer.world_size} did {trainer.global_step} steps in a {environment}")


if __name__ == "__main__":
    main()
