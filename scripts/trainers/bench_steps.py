"""The steps of the trainers that scripts/bench compares: the same work and the same log, whatever launches them.

BENCH_STEP_LOG names the directory of the log. The work of a step is `sleep`, which leaves the processor to those who
recover, or `work`, which does not. As a program it prints of how many multiplications such work is:
bench_steps.py STEP_S
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch

CALIBRATIONS = 20


class Steps:
    def __init__(self, kind: str, step_s: float) -> None:
        torch.set_num_threads(1)
        self._begun = 0
        self._own_s = self._since_s = 0.0
        self._step_s = step_s
        self._repetitions = 0 if kind == "sleep" else repetitions(step_s)
        self._log = os.open(
            Path(os.environ["BENCH_STEP_LOG"]) / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )

    def work(self) -> torch.Tensor:
        """What a rank does in a step before all sum; returns what they sum, whose sum is the size of the world."""
        self._begun += 1
        self._since_s = time.thread_time()
        if self._repetitions:
            multiply(self._repetitions)
        else:
            time.sleep(self._step_s)
        return torch.ones(1)

    def done(self, rank: int, world_size: int, round_: int, step: int, total: torch.Tensor) -> None:
        """All have summed: the step is completed."""
        if total.item() != world_size:
            raise AssertionError(f"summed {total.item()} over {world_size} ranks")
        line = {
            "mono": time.monotonic(),
            "pid": os.getpid(),
            "rank": rank,
            "world_size": world_size,
            "round": round_,
            "step": step,
            "begun": self._begun,
            "cpu_s": time.process_time(),
            "own_s": self._own_s + time.thread_time() - self._since_s,
        }
        os.write(self._log, (json.dumps(line) + "\n").encode())
        self._own_s += time.thread_time() - self._since_s


def multiply(times: int) -> None:
    for _ in range(times):
        MATRIX.mm(MATRIX)


def repetitions(step_s: float) -> int:
    """As many multiplications as take `step_s`; given by whoever wants the same in several jobs."""
    if given := os.environ.get("BENCH_REPETITIONS"):
        return int(given)
    taken = []
    for _ in range(CALIBRATIONS):
        began = time.thread_time()
        multiply(100)
        taken.append((time.thread_time() - began) / 100)
    return max(1, round(step_s / statistics.median(taken)))


MATRIX = torch.full((64, 64), 1 / 64)

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(repetitions(float(sys.argv[1])))
