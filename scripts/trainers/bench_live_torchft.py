"""What torchft asks in each step: a quorum of all replicas, and a vote. Each process is a replica of its own.

bench_live_torchft.py BLOCKS REPLICA WORLD_SIZE, with TORCHFT_LIGHTHOUSE in the environment; see bench_live.
"""

import sys
from datetime import timedelta

import torch
from bench_turns import tell, times
from torch.distributed import TCPStore

# Not in the environment that types are checked in.
from torchft import Manager, ProcessGroupGloo  # type: ignore[import-not-found]

blocks, replica, world_size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
state: dict[str, object] = {}
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
    load_state_dict=state.update,
    state_dict=lambda: dict(state),
    min_replica_size=world_size,
    rank=0,
    world_size=1,
    store_addr="127.0.0.1",
    store_port=store.port,
    replica_id=f"replica-{replica}",
    hostname="127.0.0.1",
    init_sync=False,  # all begin alike
)


def step() -> None:
    manager.start_quorum()
    manager.should_commit()


took = times(step, blocks)
if manager.num_participants() != world_size:
    raise SystemExit(f"{manager.num_participants()} of {world_size} replicas took part")
if replica == "0":
    tell(took)
manager.shutdown(wait=False)
