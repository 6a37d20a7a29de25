"""A trainer that knows nothing of softrun: env://, one all_reduce a step, a checkpoint that it resumes from.

plain.py STEPS PAUSE_S CHECKPOINT
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

steps, pause_s, checkpoint = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
step = torch.tensor([int(checkpoint.read_text()) if checkpoint.exists() else 0])
dist.broadcast(step, 0)
with (Path(os.environ["SOFTRUN_STEP_LOG"]) / f"{os.getpid()}.jsonl").open("a", buffering=1) as log:
    while step < steps:
        dist.all_reduce(torch.ones(1))
        time.sleep(pause_s)
        step += 1
        line = {"mono": time.monotonic(), "pid": os.getpid(), "rank": rank, "world_size": world_size}
        # Like torchrun's workers it has no number for its world: the port of the world's store rises or falls instead.
        print(json.dumps(line | {"round": int(os.environ["MASTER_PORT"]), "step": int(step)}), file=log)
        if rank == 0:
            checkpoint.with_suffix(".new").write_text(str(int(step)))
            checkpoint.with_suffix(".new").rename(checkpoint)
dist.destroy_process_group()
print(f"reached {int(step)}", flush=True)
