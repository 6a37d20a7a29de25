"""The wrapper's first call, to which the last rank comes when there is a file.

comes_late.py DIR BARRIER_S    writes DIR/loads once the last rank waits for DIR/comes, and DIR/<rank>-of-<ranks>
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

from softrun.runtime.inprocess import Wrapper

shared, barrier_s = Path(sys.argv[1]), float(sys.argv[2])


@Wrapper(
    soft_timeout=timedelta(seconds=0.5),
    hard_timeout=timedelta(seconds=0.8),
    barrier_timeout=timedelta(seconds=barrier_s),
)
def train() -> None:
    (shared / f"{os.environ['RANK']}-of-{os.environ['WORLD_SIZE']}").touch()


if os.environ["RANK"] == "2":
    (shared / "loads").touch()
    while not (shared / "comes").exists():
        time.sleep(0.05)
train()
