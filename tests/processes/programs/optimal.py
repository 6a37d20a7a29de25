"""In the shape of the original's optimal example: what can be kept is made before, and reserves wait for their turn."""

import datetime
import os

import torch
from basic import SECOND, fail, parse_args

from softrun.runtime import inprocess


class CloseCheckpoint(inprocess.finalize.Finalize):
    def __call__(self, state):
        print(f"finalized: rank {state.rank} after iteration {state.iteration}", flush=True)
        return state


@inprocess.Wrapper(
    initialize=inprocess.Compose(
        inprocess.initialize.RetryController(min_world_size=2, max_iterations=10),
    ),
    abort=inprocess.Compose(
        inprocess.abort.AbortTransformerEngine(),
        inprocess.abort.AbortTorchDistributed(),
    ),
    finalize=inprocess.Compose(
        CloseCheckpoint(),
        inprocess.finalize.ThreadedFinalize(timeout=datetime.timedelta(seconds=10), fn=torch.manual_seed, args=(0,)),
    ),
    health_check=inprocess.Compose(
        inprocess.health_check.CudaHealthCheck(timeout=datetime.timedelta(seconds=10)),
        inprocess.health_check.FaultCounter(max_rank_faults=3),
    ),
    rank_assignment=inprocess.Compose(
        inprocess.rank_assignment.MaxActiveWorldSize(max_active_world_size=3),
        inprocess.rank_assignment.ActiveWorldSizeDivisibleBy(divisor=1),
        inprocess.rank_assignment.ShiftRanks(),
    ),
    heartbeat_interval=SECOND,
    heartbeat_timeout=10 * SECOND,
    soft_timeout=10 * SECOND,
    hard_timeout=60 * SECOND,
    barrier_timeout=120 * SECOND,
    completion_timeout=60 * SECOND,
    last_call_wait=SECOND,
    monitor_process_logfile="/tmp/monitor_{rank}.log",
)
def train(model, optimizer, args, call_wrapper: inprocess.CallWrapper):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("gloo", timeout=60 * SECOND)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = parallel(torch.ones(4, 8) * rank).square().mean()
        if step == 4 and rank == args.fault_rank:
            fail(args.fault, args.once)
        loss.backward()
        optimizer.step()
        with call_wrapper.atomic():
            checkpoint = {name: value.clone() for name, value in model.state_dict().items()}
        call_wrapper.ping()
    torch.distributed.destroy_process_group()
    print(f"through: rank {rank} of {size} in iteration {call_wrapper.iteration}", flush=True)
    return checkpoint


if __name__ == "__main__":
    model = torch.nn.Linear(8, 8)
    result = train(model, torch.optim.SGD(model.parameters(), lr=1e-3), parse_args())
    print("an active rank" if result else "a reserve", "returns", flush=True)
