"""Proof that a worker goes on, and how far it is, in a little memory that it shares with its agent.

    version, process id, beat, ping, took, step + 1, event      seven 64-bit numbers; times are nanoseconds, of
                                                                CLOCK_MONOTONIC, which all processes of a host share,
                                                                and 0 is "not in use"

The **beat** is written by the main thread, when it executes byte code: a thread of ours only asks the interpreter to
have it call a function there (`Py_AddPendingCall`). So that thread's own life, or that of a thread in C++, proves
nothing, and neither does a main thread that sits in a call, whether that holds the GIL or not. The **ping** is the
trainer's own word, for loops that execute byte code and get nowhere; it counts from its first use. The **step** is
the last that the trainer has completed in its present world, **took** how long the last one was in any. The **event**
is the agent's: the number of the newest that it has written, so that to look for one after every step needs no system
call. Of step and event each end writes its own before it reads the other's, with far more in between than a processor
puts into another order: one of them sees what the other has done.

Nothing here judges. The agent looks when a limit would have passed (`softrun.agent.watch`), so the cost is a store into
memory for a ping and a few microseconds four times a second for the beat.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import mmap
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

BEAT_INTERVAL_S = 0.25
STACKS_SIGNAL = signal.SIGRTMIN + 7
"""Upon it a worker writes the Python stacks of all its threads to its standard error, whatever it is doing."""

_LAYOUT = struct.Struct("=7Q")
SIZE = _LAYOUT.size
_VERSION = 3
_PID, _BEAT, _PING, _TOOK, _STEP, _EVENT = 1, 2, 3, 4, 5, 6

_log = logging.getLogger("softrun.runtime")


class LastProgress(NamedTuple):
    pid: int
    last_s: float
    """By CLOCK_MONOTONIC, of whichever of its ways of showing progress is the longest ago."""
    step: int | None
    step_s: float
    """How long the last one took, in this world or in one before; 0 where that is not known."""


def read_progress(content: bytes) -> LastProgress | None:
    """What a worker shows; None if that cannot be understood."""
    if len(content) != SIZE:
        return None
    version, pid, beat, ping, took, step, _ = _LAYOUT.unpack(content)
    if version != _VERSION or not beat:
        return None
    last = min(at for at in (beat, ping) if at)
    return LastProgress(pid, last / 1e9, step - 1 if step else None, took / 1e9)


class NewestEvent:
    """Its number, 0 before the first; written by the agent, after the event itself."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._words = memoryview(memory).cast("Q")

    def set(self, number: int) -> None:
        self._words[_EVENT] = number

    def is_not(self, number: int) -> bool:
        return self._words[_EVENT] != number


class Progress:
    """The worker's end. Make it in the main thread."""

    def __init__(self, memory: mmap.mmap, beside: Callable[[], None] = lambda: None) -> None:
        """`beside` is called in the thread that asks for the beats, as often."""
        self._words = memoryview(memory).cast("Q")
        self._beside = beside
        self._completed_at = 0
        self._asked = False
        self._withheld = False
        self._ended = threading.Event()
        self._call = _PENDING(self._beat)  # kept: the interpreter holds a bare pointer to it
        _show_stacks_on_signal()
        self._words[_PID] = os.getpid()
        self._words[_BEAT] = time.monotonic_ns()
        self._words[0] = _VERSION
        threading.Thread(target=self._keep_asking, name="softrun-progress", daemon=True).start()

    def ping(self) -> None:
        """The trainer gets on. Costs less than a microsecond."""
        self._words[_PING] = time.monotonic_ns()
        if self._withheld:
            self._words[_BEAT] = self._words[_PING]

    def withhold(self, withheld: bool) -> None:
        """While withheld, the main thread's byte code proves nothing: it may poll for ever. A ping does."""
        self._withheld = withheld

    @property
    def has_worked(self) -> bool:
        """Has the trainer completed a step in this world, or pinged there?"""
        return bool(self._words[_STEP] or self._words[_PING])

    def hold(self) -> None:
        """The trainer waits because it was told to: it cannot ping, and its step takes longer for that reason alone."""
        self._completed_at = 0
        if self._words[_PING]:
            self.ping()

    def completed(self, step: int) -> None:
        now = time.monotonic_ns()
        if self._completed_at:
            self._words[_TOOK] = now - self._completed_at
        self._completed_at = now
        self._words[_STEP] = step + 1

    def begin_world(self) -> None:
        """The next ping is the first again, and no step is completed yet."""
        self._words[_PING] = self._words[_STEP] = self._completed_at = 0

    def _keep_asking(self) -> None:
        while not self._ended.wait(BEAT_INTERVAL_S):
            if not self._asked:
                self._asked = True
                if ctypes.pythonapi.Py_AddPendingCall(self._call, None) != 0:
                    self._asked = False  # too many of others wait already
            self._beside()

    def _beat(self, _: object) -> int:
        """In the main thread, between two byte codes."""
        self._asked = False
        if not self._withheld:
            self._words[_BEAT] = time.monotonic_ns()
        return 0


_PENDING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def _show_stacks_on_signal() -> None:
    try:
        faulthandler.register(STACKS_SIGNAL, file=sys.__stderr__ or 2, all_threads=True)
    except (OSError, RuntimeError, ValueError) as error:
        _log.warning("the stacks of this worker will not be shown if it hangs: %s", error)
        signal.signal(STACKS_SIGNAL, signal.SIG_IGN)
