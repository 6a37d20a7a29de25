"""In the shape of the original's advanced example: ranks by the topology, a store that is kept, restarts nested in an
outer system, and an assignment and an abort of its own."""

import logging
import os
import socket
import sys

import torch
from basic import SECOND, fail, parse_args

from softrun.runtime import inprocess

logging.basicConfig(stream=sys.stdout)


class LogAssignment(inprocess.rank_assignment.RankAssignment):
    """It is called on every rank, and may ask its own process."""

    def __init__(self, tree):
        self.tree = tree

    def __call__(self, ctx):
        before = ctx.state.rank
        ctx = self.tree(ctx)
        print(f"assigned: {before} is {ctx.state.rank}, active as {ctx.state.active_rank}", flush=True)
        return ctx


class AbortLoader(inprocess.abort.Abort):
    def __call__(self, state):
        print(f"aborted: in iteration {state.iteration}", flush=True)
        return state


def train(base_store, args, call: inprocess.CallWrapper):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = torch.distributed.PrefixStore(str(call.iteration), base_store)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=60 * SECOND)
    with call.disable_hang_protection():
        weight = torch.zeros(1)
    for step in range(args.steps):
        if step == 4 and rank == args.fault_rank:
            fail(args.fault, args.once)
        torch.distributed.all_reduce(weight.add_(1 / size))
        call.ping()
    torch.distributed.destroy_process_group()
    print(f"through: rank {rank} of {size} in iteration {call.iteration}", flush=True)


if __name__ == "__main__":
    args = parse_args()
    base_store = torch.distributed.TCPStore(
        host_name=os.environ["MASTER_ADDR"],
        port=int(os.environ["MASTER_PORT"]) + 2,
        world_size=int(os.environ["WORLD_SIZE"]),
        is_master=int(os.environ["RANK"]) == 0,
        multi_tenant=True,
        wait_for_workers=True,
        use_libuv=True,
    )
    tree = inprocess.rank_assignment.Tree(
        [
            inprocess.rank_assignment.Layer(
                min_ranks=1, max_ranks=3, key_or_fn="job", flag=inprocess.rank_assignment.LayerFlag.RESERVE
            ),
            inprocess.rank_assignment.Layer(
                min_ranks=1,
                key_or_fn=lambda _: socket.gethostname(),
                flag=inprocess.rank_assignment.LayerFlag.RESERVE,
            ),
        ]
    )
    wrapper = inprocess.Wrapper(
        initialize=inprocess.Compose(
            inprocess.nested_restarter.NestedRestarterHandlingCompleted(),
            inprocess.initialize.RetryController(max_iterations=10),
        ),
        abort=inprocess.Compose(
            inprocess.abort.AbortTorchDistributed(),
            AbortLoader(),
            inprocess.nested_restarter.NestedRestarterHandlingStarting(),
        ),
        rank_assignment=LogAssignment(tree),
        completion=inprocess.nested_restarter.NestedRestarterFinalized(),
        terminate=inprocess.nested_restarter.NestedRestarterAborted(),
        soft_timeout=10 * SECOND,
        hard_timeout=60 * SECOND,
        barrier_timeout=120 * SECOND,
    )
    wrapper(train)(base_store, args)
