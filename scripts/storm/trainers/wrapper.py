"""The same work as a function that is restarted in its process."""

import os
from datetime import timedelta

import torch.distributed as dist
from storming import State, Storm

from softrun import CallWrapper
from softrun.runtime.inprocess import RankAssignment, RankAssignmentCtx, ShiftRanks, Wrapper

SECOND = timedelta(seconds=1)
storm = Storm()
state = State()
kept = ""


class Assignment(RankAssignment):
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        storm.reach("assign")
        return ShiftRanks()(ctx)


@Wrapper(
    rank_assignment=Assignment(),
    initialize=lambda _: storm.reach("initialize"),
    finalize=lambda _: storm.reach("finalize"),
    health_check=lambda _: storm.reach("health"),
    completion=lambda _: storm.reach("completion"),
    soft_timeout=float(os.environ["STORM_SOFT_TIMEOUT_S"]) * SECOND,
    hard_timeout=float(os.environ["STORM_HARD_TIMEOUT_S"]) * SECOND,
    termination_grace_time=SECOND / 2,
)
def train(call: CallWrapper) -> None:
    dist.init_process_group("gloo")

    def save(step: int) -> None:
        global kept
        with call.atomic():
            storm.reach("atomic")
            kept = f"a checkpoint of step {step}"

    storm.train(state, save)
    storm.reach("return")


train()
storm.note("complete" if state.learned[2] else "gave up", step=state.learned[0], weight=state.learned[1])
