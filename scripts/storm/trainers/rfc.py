"""The soft-restart RFC's loop, as it is printed there ("Description"), with nothing in it that would be kinder."""

import torch.distributed as dist
from storming import State, Storm

import softrun

maximum_attempts = 50


def log_failure(state, e):
    storm.note("caught", error=f"{type(e).__name__}: {e}"[:200], step=state.learned[0])


def reset(worker_info):
    pass


storm = Storm()
state = State()
local_attempts = 0
worker_info = softrun.get_worker_info()
while local_attempts < maximum_attempts:
    try:
        dist.init_process_group(backend="gloo", **worker_info.get_pg_parameters())
        storm.train(state)
        storm.reach("return")
        break
    except Exception as e:
        log_failure(state, e)
        dist.destroy_process_group()
        worker_info = softrun.get_worker_info()
        reset(worker_info)
        local_attempts += 1
storm.reach("completion")
storm.note("complete" if state.learned[2] else "gave up", step=state.learned[0], weight=state.learned[1])
