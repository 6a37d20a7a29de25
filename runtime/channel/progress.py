"""Proof that a worker goes on, and how far it is, in the page that it shares with its agent.

The **beat** is written by the main thread, when it executes byte code: a thread of ours only asks the interpreter to
have it call a function there (`Py_AddPendingCall`). So that thread's own life, or that of a thread in C++, proves
nothing, and neither does a main thread that sits in a call, whether that holds the GIL or not. The **ping** is the
trainer's own word, for loops that execute byte code and get nowhere; it counts from its first use. The **step** is
the last that the trainer has completed in its present world, **took** how long the last one was in any. Beat and ping
are times of CLOCK_MONOTONIC, which all processes of a host share. Of step and event each end writes its own before it
reads the other's, with far more in between than a processor puts into another order: one of them sees what the other
has done.

Nothing here judges. The agent looks when a limit would have passed (`softrun.agent.core.progress_watchdog`), so the
cost is a store into memory for a ping and a few microseconds four times a second for the beat.

When a worker hangs, its stacks are wanted. The signal handler writes only that of the main thread: it runs there, so
it can always look, and what it walks stands still. The other threads begin and end while they are looked at, so they
are left to our thread, which has the GIL then; if it cannot get the GIL, the main thread's stack says what holds it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NamedTuple

from softrun.runtime.channel.ownership import claimant, is_running
from softrun.runtime.channel.page import BEAT, OWNER, PING, SHOWS, STEP, TOOK, Page

BEAT_INTERVAL_S = 0.25
STACKS_SIGNAL = signal.SIGRTMIN + 7
"""Upon it a worker's main thread writes its Python stack to the standard error, whatever it is doing."""
SHOWN_THREADS = SHOWN_FRAMES = 100

_log = logging.getLogger("softrun.runtime")


class LastProgress(NamedTuple):
    """What a worker has shown of its progress."""

    pid: int
    last_s: float
    """By CLOCK_MONOTONIC, of whichever of its ways of showing progress is the longest ago; now, where the process that
    showed it has ended: the worker is another one, which has shown nothing yet."""
    step: int | None
    step_s: float
    """How long the last one took, in this world or in one before; 0 if that is not known."""


def read_progress(page: Page) -> LastProgress | None:
    """What a worker shows; None if it shows nothing."""
    if not page.is_in_use:
        return None
    words = page.words
    owner, beat, ping, took, step = (words[which] for which in (OWNER, BEAT, PING, TOOK, STEP))
    last_s = min(at for at in (beat, ping) if at) / 1e9 if is_running(owner) else time.monotonic()
    return LastProgress(claimant(owner), last_s, step - 1 if step else None, took / 1e9)


class Progress:
    """The worker's end, of a page that this process has claimed: once that is somebody else's it writes nothing there.
    Make it in the main thread.

    `each_beat` is called in a thread of ours at every beat, and must not wait.
    """

    def __init__(self, page: Page, each_beat: Callable[[], None] = lambda: None) -> None:
        self._words = page.words
        self._owner = page.words[OWNER]
        self._each_beat = each_beat
        self._completed_at = 0
        self._asked = self._failed = self._withheld = False
        self._shown = page.words[SHOWS]
        self._ended = threading.Event()
        self._call = _PENDING(self._beat)  # kept: the interpreter holds a bare pointer to it
        _show_stack_on_signal()
        self.begin_world()
        self._words[BEAT] = time.monotonic_ns()
        page.begin()
        threading.Thread(target=self._keep_beating, name="softrun-progress", daemon=True).start()

    def ping(self) -> None:
        """The trainer gets on. Costs less than a microsecond."""
        if self._words[OWNER] == self._owner:
            self._words[PING] = time.monotonic_ns()
            if self._withheld:
                self._words[BEAT] = self._words[PING]

    def withhold(self, withheld: bool) -> None:
        """While withheld, the main thread's byte code proves nothing: it may poll for ever. A ping does."""
        self._withheld = withheld

    @property
    def is_own(self) -> bool:
        """Whether this is still the process that shows its progress there."""
        return bool(self._words[OWNER] == self._owner) and claimant(self._owner) == os.getpid()

    @property
    def has_worked(self) -> bool:
        """Has the trainer completed a step in this world, or pinged there?"""
        return bool(self._words[STEP] or self._words[PING])

    def hold(self) -> None:
        """The trainer waits because it was told to: it cannot ping, and its step takes longer for that reason alone."""
        self._completed_at = 0
        if self._words[PING]:
            self.ping()

    def completed(self, step: int) -> None:
        """The worker has completed this step of its world."""
        words = self._words
        if words[OWNER] != self._owner:
            return
        now = time.monotonic_ns()
        if self._completed_at:
            words[TOOK] = now - self._completed_at
        self._completed_at = now
        words[STEP] = step + 1

    def begin_world(self) -> None:
        """The next ping is the first again, and no step is completed yet."""
        self._completed_at = 0
        if self._words[OWNER] == self._owner:
            self._words[PING] = self._words[STEP] = 0

    def _keep_beating(self) -> None:
        while not self._ended.wait(BEAT_INTERVAL_S):
            if not self._asked:
                self._asked = True
                if ctypes.pythonapi.Py_AddPendingCall(self._call, None) != 0:
                    self._asked = False  # too many of others wait already
            if self._words[SHOWS] != self._shown:
                self._shown = self._words[SHOWS]
                show_other_stacks()
            self._call_each_beat()

    def _call_each_beat(self) -> None:
        try:
            self._each_beat()
        except Exception:
            if not self._failed:
                self._failed = True
                _log.exception("what is looked at with every beat failed, and may again")

    def _beat(self, _: object) -> int:
        """In the main thread, between two byte codes."""
        self._asked = False
        if self._words[OWNER] == self._owner and not self._withheld:
            self._words[BEAT] = time.monotonic_ns()
        return 0


_PENDING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def _show_stack_on_signal() -> None:
    # faulthandler restores what it finds when the interpreter ends, and the signal's own default would end the process.
    signal.signal(STACKS_SIGNAL, signal.SIG_IGN)
    try:
        faulthandler.register(STACKS_SIGNAL, file=sys.__stderr__ or 2, all_threads=False)
    except (OSError, RuntimeError, ValueError) as error:
        _log.warning("the stacks of this worker will not be shown if it hangs: %s", error)


def show_other_stacks() -> None:
    """Write the stacks of all threads but the main one and this one to the standard error."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    known = (threading.main_thread().ident, threading.get_ident())
    others = [(ident, frame) for ident, frame in sys._current_frames().items() if ident not in known]
    lines = []
    for ident, frame in others[:SHOWN_THREADS]:
        lines += [f"Thread {names.get(ident, hex(ident))} (most recent call first):", *_lines(frame)]
    if len(others) > SHOWN_THREADS:
        lines.append(f"and {len(others) - SHOWN_THREADS} more threads")
    if lines:
        with suppress(OSError):  # to the descriptor: the thread that hangs may hold the stream's lock
            os.write(2, ("\n".join(lines) + "\n").encode(errors="replace"))


def _lines(frame: FrameType | None) -> list[str]:
    lines: list[str] = []
    while frame is not None and len(lines) < SHOWN_FRAMES:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return lines
