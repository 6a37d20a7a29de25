"""In the shape of the original's basic example: everything is made anew in each iteration, over a store of its own."""

import argparse
import datetime
import os
import pathlib
import signal
import socket

import torch

from softrun.runtime import inprocess

SECOND = datetime.timedelta(seconds=1)
other_program = socket.socket()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--fault", choices=["exception", "kill", "hang", "port", "none"], default="none")
    parser.add_argument("--fault-rank", type=int, default=1)
    parser.add_argument("--once", type=pathlib.Path, required=True, help="is made when the fault has struck")
    return parser.parse_args()


def fail(how: str, once: pathlib.Path) -> None:
    """Once in the job, however often it begins: its port next to the job's own may be taken by any other program."""
    if once.exists():
        return
    once.touch()
    if how == "exception":
        raise RuntimeError("example fault")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        signal.pause()


@inprocess.Wrapper(
    store_kwargs={"port": 29501},
    initialize=inprocess.initialize.RetryController(max_iterations=5, min_world_size=2),
    health_check=inprocess.health_check.CudaHealthCheck(),
    progress_watchdog_interval=SECOND,
    soft_timeout=10 * SECOND,
    hard_timeout=60 * SECOND,
    barrier_timeout=120 * SECOND,
)
def main(args: argparse.Namespace, call_wrapper: inprocess.CallWrapper = None) -> int:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"]) + call_wrapper.iteration + 1
    if args.fault == "port" and call_wrapper.iteration == 0 and rank == 0:
        other_program.bind((os.environ["MASTER_ADDR"], port))
    store = torch.distributed.TCPStore(
        host_name=os.environ["MASTER_ADDR"],
        port=port,
        world_size=size,
        is_master=rank == 0,
        multi_tenant=True,
        wait_for_workers=True,
        use_libuv=True,
    )
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=60 * SECOND)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8) * rank).square().mean()
        if step == 4 and rank == args.fault_rank:
            fail(args.fault, args.once)
        loss.backward()
        optimizer.step()
        loss.item()
        call_wrapper.ping()
    torch.distributed.destroy_process_group()
    print(f"through: rank {rank} of {size} in iteration {call_wrapper.iteration}", flush=True)
    return rank


if __name__ == "__main__":
    main(parse_args())
