"""Start the workers from a program of your own, and get what they return.

    python examples/launch_from_program.py

On several nodes, run it on each with the same --endpoint HOST:PORT; the node with that address hosts the store. Kill a
worker while it runs (add --pause 0.1): it is replaced, and the others keep their process.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist

import softrun
from softrun import LaunchConfig, RestartPolicy, launch_agent


def train(steps: int, pause: float) -> tuple[int, float]:
    """What each worker runs: the mean of random numbers, a batch from every worker in each step."""
    print(f"process {os.getpid()} starts", flush=True)
    state = torch.zeros(2)  # the sum of the means, and the number of steps
    for world in softrun.worlds():
        with world.process_group("gloo"):
            dist.broadcast(state, src=0)  # rank 0 has been here before if anybody has
            while state[1] < steps:
                mean = torch.rand(1000).mean()
                dist.all_reduce(mean)
                state += torch.stack([mean / world.world_size, torch.tensor(1.0)])
                time.sleep(pause)
                world.check(int(state[1]))  # ends this pass if the world has changed
    return os.getpid(), float(state[0] / state[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", default="localhost:29400")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="on each node")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step")
    args = parser.parse_args()
    results = launch_agent(
        config=LaunchConfig(
            min_nodes=1,
            max_nodes=args.nodes,
            nproc_per_node=args.workers,
            run_id="mean",
            rdzv_endpoint=args.endpoint,
            restart_policy=RestartPolicy.SOFT,
            worker_failure="replace",
            max_restarts=3,
        ),
        entrypoint=train,
        args=[args.steps, args.pause],
    )
    for rank, (pid, mean) in sorted(results.items()):
        print(f"rank {rank}, process {pid}: mean {mean:.3f}")


if __name__ == "__main__":  # the workers import this file, too
    main()
