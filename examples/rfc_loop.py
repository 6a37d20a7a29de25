r"""The loop of the RFC "torchelastic soft restarts": join a world, train, and join the next one when it breaks.

    python -m softrun --restart_policy soft --worker_failure replace --max_restarts 3 \
        --nproc_per_node 2 examples/rfc_loop.py

Kill a worker while it runs (add --pause 0.1): the others keep their process, and the replacement gets the weights from
rank 0. Rank 0 has been here before if anybody has.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist

from softrun import WorkerInfo, get_worker_info

BATCH, MAXIMUM_ATTEMPTS = 64, 20

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step, to have time to watch")
args = parser.parse_args()
truth = torch.arange(1.0, 9.0)  # what is to be learned
weights, step = torch.zeros(8), torch.zeros(1, dtype=torch.int64)  # they stay in memory when the world changes


def train(worker_info: WorkerInfo) -> None:
    for tensor in (weights, step):
        dist.broadcast(tensor, src=0)
    while step < args.steps:
        inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(int(step)))
        inputs = inputs[worker_info.rank :: worker_info.world_size]  # this worker's share
        gradient = inputs.T @ (inputs @ (weights - truth))
        dist.all_reduce(gradient)
        weights.sub_(gradient / BATCH * 0.3)
        step.add_(1)
        time.sleep(args.pause)


print(f"process {os.getpid()} starts", flush=True)
worker_info = get_worker_info()
for _ in range(MAXIMUM_ATTEMPTS):
    try:
        dist.init_process_group(backend="gloo", **worker_info.get_pg_parameters())
        train(worker_info)
        break
    except Exception as error:
        print(f"process {os.getpid()}: {type(error).__name__} after step {int(step)}", flush=True)
        dist.destroy_process_group()
        worker_info = get_worker_info()  # waits for the next world
else:
    raise SystemExit(f"gave up after {MAXIMUM_ATTEMPTS} attempts")

error = float((weights - truth).abs().max())
print(f"process {os.getpid()}, rank {worker_info.rank}: step {int(step)}, largest error {error:.1e}", flush=True)
dist.destroy_process_group()
