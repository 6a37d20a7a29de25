"""A trainer that knows nothing of softrun and only sleeps. It logs what its environment says, and does as it is told.

told.py DIRECTORY

A file `exit-<rank>` there makes the worker of this rank take the file away and exit 1; `finish` makes all exit 0. With
`slow` there it needs two seconds to end on SIGTERM, with `deaf` it notes in
`heard` that it was asked to; SIGUSR1 is noted in `usr1-<pid>`.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

orders = Path(sys.argv[1])
rank = int(os.environ["RANK"])


def on_term(*_: object) -> None:
    if (orders / "deaf").exists():
        (orders / "heard").touch()
        return
    if (orders / "slow").exists():
        time.sleep(2)
        (orders / f"saved-{rank}").touch()
    sys.exit(143)


def on_usr1(*_: object) -> None:
    with (orders / f"usr1-{os.getpid()}").open("a") as file:
        file.write("got one\n")


signal.signal(signal.SIGTERM, on_term)
signal.signal(signal.SIGUSR1, on_usr1)
said = {"pid": os.getpid(), "rank": rank, "world_size": int(os.environ["WORLD_SIZE"])}
said["round"] = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
step = 0
with (Path(os.environ["SOFTRUN_STEP_LOG"]) / f"{os.getpid()}.jsonl").open("a", buffering=1) as log:
    while not (orders / "finish").exists():
        time.sleep(0.02)
        step += 1
        print(json.dumps(said | {"mono": time.monotonic(), "step": step}), file=log)
        with suppress(FileNotFoundError):
            (orders / f"exit-{rank}").unlink()
            sys.exit(1)
