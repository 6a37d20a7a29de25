"""It raises in each iteration, until the RetryController ends it."""

import os
from datetime import timedelta

from softrun.runtime import inprocess


@inprocess.Wrapper(
    initialize=inprocess.RetryController(max_iterations=3),
    soft_timeout=None,
    hard_timeout=None,
    barrier_timeout=timedelta(seconds=float(os.environ.get("BARRIER_S", "60"))),
)
def train(call: inprocess.CallWrapper, state: inprocess.State) -> None:
    print(f"iteration {call.iteration} of rank {state.rank}", flush=True)
    raise ValueError("the loss is not a number")


train()
