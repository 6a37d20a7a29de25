"""The last rank leaves the wrapped function; leaves_call.py DIRECTORY WAY: by SystemExit, or unfit after a fault.

Each iteration that begins leaves a file "RANK-ITERATION". Whoever leaves by SystemExit lives on until there is a file
"ends".
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from softrun.runtime import inprocess

directory, way = Path(sys.argv[1]), sys.argv[2]
unfit = False


def check(_: inprocess.FrozenState) -> None:
    if unfit:
        raise RuntimeError("this GPU is broken")


LIMITS = {"unfit": {"max_iterations": 2}, "too few": {"min_world_size": 3}}


@inprocess.Wrapper(initialize=inprocess.RetryController(**LIMITS.get(way, {})), health_check=check)
def function(call: inprocess.CallWrapper, state: inprocess.FrozenState) -> None:
    global unfit
    (directory / f"{state.rank}-{call.iteration}").touch()
    if call.iteration == 0 and state.rank == 2:
        while len(list(directory.glob("*-0"))) < 3:
            time.sleep(0.01)
        if way == "unfit":
            unfit = True
            raise RuntimeError("a fault")
        sys.exit(0)
    while call.iteration == 0:
        time.sleep(0.01)


try:
    function()
except SystemExit:
    while not (directory / "ends").exists():
        time.sleep(0.01)
    raise
