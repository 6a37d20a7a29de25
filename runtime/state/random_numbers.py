"""Random numbers that come through every change of the world, because they need not be kept."""

from __future__ import annotations

import hashlib
import os
import random
import sys
from typing import Any


class RandomNumbers:
    """Begins each step with random numbers that depend on `seed`, on the step, and on the rank alone.

        state = softrun.State(model=model, optimizer=optimizer, random=softrun.RandomNumbers(seed=0), step=0)

    So a newcomer draws what the lost rank would have drawn, and a step that is done again draws the same again. The
    generators of torch (CPU and all devices), of Python's `random` and of numpy are seeded by `State.sync` and
    `State.commit`. `per_rank=False`: all ranks draw the same, as those that share a layer (tensor parallelism) must.
    """

    def __init__(self, seed: int = 0, per_rank: bool = True) -> None:
        self._seed = seed
        self._per_rank = per_rank
        self._step = 0

    def commit(self) -> None:
        """The step is complete: seed the generators for the next one."""
        self._step += 1
        self.resume()

    def resume(self) -> None:
        """Seed the generators for the step that is next."""
        rank = int(os.environ.get("RANK", 0)) if self._per_rank else 0
        digest = hashlib.sha256(f"{self._seed} {self._step} {rank}".encode()).digest()
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        random.seed(digest)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(list(digest[8:24]))

    def state_dict(self) -> dict[str, int]:
        """The seed, and how many steps there were."""
        return {"seed": self._seed, "step": self._step}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Take the step of another rank. Raises ValueError if that has another seed."""
        if state_dict["seed"] != self._seed:
            raise ValueError(
                f"RandomNumbers(seed={self._seed}) here, and {state_dict['seed']} on the rank it should come from: "
                "give the same seed on all ranks"
            )
        self._step = state_dict["step"]
