"""Two calls one after the other, and what they leave in the process and its environment."""

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from softrun.runtime import inprocess

COUNT = Path(sys.argv[1]) if len(sys.argv) > 1 else None


def held() -> tuple[list[str], int, dict[str, str]]:
    names = ("MASTER_ADDR", "MASTER_PORT", "SOFTRUN_CHANNEL", "TORCHELASTIC_USE_AGENT_STORE", "LOCAL_WORLD_SIZE")
    threads = sorted(thread.name for thread in threading.enumerate())
    return threads, len(list(Path("/proc/self/fd").iterdir())), {name: os.environ.get(name, "") for name in names}


@inprocess.Wrapper()
def train(call: inprocess.CallWrapper) -> int:
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    while COUNT is not None and call.iteration == 0:  # until a rank is lost
        (COUNT / str(os.getpid())).touch()
        dist.all_reduce(total)
        time.sleep(0.01)
    dist.destroy_process_group()
    return int(os.environ["WORLD_SIZE"])


dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # what torch keeps after its first store
before = held()
sizes = [train() for _ in range(1 if COUNT else 2)]
print(json.dumps({"sizes": sizes, "same": held() == before, "before": before, "after": held()}), flush=True)
