"""The program hosts a store of its own at MASTER_PORT, so the wrapper meets at MEETING_PORT."""

import os

import torch.distributed as dist

from softrun.runtime import inprocess

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0)


@inprocess.Wrapper(store_kwargs={"port": int(os.environ["MEETING_PORT"])})
def train() -> int:
    return store.add("here", 1)


train()
store.set("all" if store.add("through", 1) == size else "one", "through")
store.wait(["all"])
print("through")
