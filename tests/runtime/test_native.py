"""A process whose work is done ends in good order, whatever its threads sit in."""

from __future__ import annotations

import subprocess
import sys

import pytest

from local_cluster import PATIENCE_S

ENDS = """
import threading, time
from softrun.runtime.groups import native

def say(text, after_s):
    time.sleep(after_s)
    print(text)

recalled = threading.Event()
native.start(lambda: say("has come back", 0.2), "soon")
native.start(lambda: recalled.wait() and print("was recalled"), "recalled", recall=recalled.set)
native.start(lambda: time.sleep(600), "never")
"""

MEETS = """
import os, signal, subprocess, sys, threading, time
from datetime import timedelta

SERVER = "import torch.distributed as d; s = d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False); \\
print(s.port, flush=True); input()"
server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class WhileTheInterpreterEnds:
    def __del__(self, kill=server.kill, sleep=time.sleep):
        kill()
        sleep(0.5)


from softrun.runtime.events import WorkerInfo
from softrun.runtime.inprocess.calls.world_store import WorldStore

info = WorkerInfo.model_construct(master_addr="127.0.0.1", master_port=int(server.stdout.readline()))
world_store = WorldStore(info)
world_store.set("here", b"1")


class Interrupted(BaseException):
    pass


def interrupt(*_):
    raise Interrupted


def wait(key="nobody sets it"):
    world_store.wait_for(key)


if sys.argv[1] == "interrupted":  # as by a new world
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        wait()
    except Interrupted:
        assert world_store.wait_for("here") == b"1"
else:  # by a thread that nobody waits for
    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.2)
sys.modules["late"] = WhileTheInterpreterEnds()
"""


@pytest.mark.processes
def test_a_process_ends_after_its_native_threads_but_waits_for_none_that_hangs() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDS], stdout=subprocess.PIPE, timeout=PATIENCE_S, text=True, check=True
    )
    assert sorted(ended.stdout.splitlines()) == ["has come back", "was recalled"]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("way", ["interrupted", "in a thread"])
def test_a_process_that_ends_when_its_world_does_is_not_aborted(way: str) -> None:
    """The store goes while the interpreter ends: the thread that waits in it would be the end of the process."""
    ended = subprocess.run([sys.executable, "-c", MEETS, way], stderr=subprocess.PIPE, timeout=PATIENCE_S, text=True)
    assert ended.returncode == 0, ended.stderr
