"""A trainer whose SIGTERM handler only notes that it was called, as most do.

notes_signals.py DIRECTORY WAY: `worlds` and `wrapper` never look at the note, `stops` ends its loop by it. With a file
"enough" in the directory the work is done. What follows the loop leaves a file "over-PID".
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from softrun import World, WorldChanged, worlds
from softrun.runtime import inprocess

directory, way = Path(sys.argv[1]), sys.argv[2]
noted: list[int] = []
signal.signal(signal.SIGTERM, lambda signum, _: noted.append(signum))


def train(rank: int, check: Callable[[int], None]) -> None:
    (directory / f"pid-{rank}").write_text(str(os.getpid()))
    step = 0
    while not (directory / "enough").exists() and not (noted and way == "stops"):
        time.sleep(0.01)
        step += 1
        check(step)


@inprocess.Wrapper()
def wrapped(world: World) -> None:
    train(world.rank, lambda _: None)


if way == "wrapper":
    try:
        wrapped()
    finally:
        (directory / f"over-{os.getpid()}").touch()
else:
    for world in worlds():
        with suppress(WorldChanged):
            train(world.rank, world.check)
    (directory / f"over-{os.getpid()}").touch()
