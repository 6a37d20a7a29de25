"""Steps for ever under torchft, as a replica group of its own: a trainer that stays when others are lost.

bench_torchft.py SETTINGS KIND STEP_S REPLICA_ID, with TORCHFT_LIGHTHOUSE in the environment; see bench_steps.py.
"""

import sys
from datetime import timedelta

import torch
from bench_steps import Steps
from torch.distributed import ReduceOp, TCPStore

# Not in the environment that types are checked in.
from torchft import Manager, ProcessGroupGloo  # type: ignore[import-not-found]

TUNED = {"timeout": timedelta(seconds=5), "heartbeat_interval": timedelta(milliseconds=50)}
# Who notices a lost peer keeps its connections until the next quorum, so others of the group wait for this timeout.
GROUP_TIMEOUTS = {"default": timedelta(seconds=60), "tuned": timedelta(milliseconds=400)}

settings, kind, step_s, replica_id = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
steps = Steps(kind, step_s)
state = {"step": torch.zeros(1, dtype=torch.int64)}
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=ProcessGroupGloo(timeout=GROUP_TIMEOUTS[settings]),
    load_state_dict=state.update,
    state_dict=lambda: dict(state),
    min_replica_size=1,
    rank=0,
    world_size=1,
    store_addr="127.0.0.1",
    store_port=store.port,
    replica_id=replica_id,
    hostname="127.0.0.1",
    **(TUNED if settings == "tuned" else {}),
)
while True:
    manager.start_quorum()
    total = steps.work()
    manager.allreduce(total, reduce_op=ReduceOp.SUM).wait()
    if not manager.should_commit():
        continue
    state["step"] = state["step"] + 1
    rank = manager.participating_rank()
    if rank is not None:  # it is not in a step that it was healed in
        # There is no public name for the number of a quorum.
        steps.done(rank, manager.num_participants(), manager._quorum_id, int(state["step"]), total)
