"""A worker that shows another name, as setproctitle has it, and has children that are hard to find.

family.py DIRECTORY [ENDS]

Each of its processes leaves a file in the directory, named after what it is and its process id. With ENDS the worker
exits with that code as soon as they are all there; else it waits for a signal.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STAYS = "import os, sys, time; open(sys.argv[1] + str(os.getpid()), 'w'); time.sleep(600)"


def show_another_name() -> None:
    """Over the arguments and the environment that the process was started with."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    begin, end = int(fields[45]), int(fields[48])
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, b"trainer", 7)
    assert b"=" not in Path("/proc/self/environ").read_bytes()


def fork(then: object) -> None:
    if os.fork() == 0:
        assert callable(then)
        then()
        os._exit(0)


def stay(directory: str, name: str) -> None:
    Path(directory, f"{name}-{os.getpid()}").touch()
    signal.pause()


def leave_both(directory: str) -> None:
    """A session of its own, and no parent."""
    os.setsid()
    fork(lambda: stay(directory, "daemon"))


def run(directory: str, ends: str = "") -> None:
    show_another_name()
    fork(lambda: stay(directory, "member"))
    fork(lambda: leave_both(directory))
    subprocess.Popen([sys.executable, "-I", "-S", "-c", STAYS, f"{directory}/program-"], env={}, start_new_session=True)
    subprocess.Popen([sys.executable, "-I", "-S", "-c", STAYS, f"{directory}/member-"], env={})
    while len(list(Path(directory).iterdir())) < 4:
        time.sleep(0.01)
    Path(directory, f"worker-{os.getpid()}").touch()
    if ends:
        sys.exit(int(ends))
    signal.pause()


if __name__ == "__main__":
    run(*sys.argv[1:])
