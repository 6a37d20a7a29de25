"""Proof that a worker makes progress, and how far it is, in the page that it shares with its agent.

The main thread writes the **beat** when it executes byte code: a thread of softrun only asks the interpreter to call a
function there (`Py_AddPendingCall`). So a living thread of ours, or one in C++, proves nothing, and neither does a main
thread that sits in a call, with or without the GIL. Only in a block that writes a checkpoint, writing is a beat, too.
The **ping** comes from the trainer, for loops that execute byte code and get nowhere; it counts from its first use. The
**step** is the last that the trainer has completed in its present world, and **took** is how long the last step took in
any world. Beat and ping are times of CLOCK_MONOTONIC, which all processes of a host share, and which stands still while
the machine is suspended, as the trainer does. Each end writes its own of step and event before it reads the other's,
with far more in between than a processor reorders, so at least one of them sees what the other has done.

Nothing here judges. The agent looks only when a limit has passed (`softrun.agent.core.progress_watchdog`), so a ping
costs a write to memory, and the beat a few microseconds four times a second.

When a worker hangs, people want its stacks. The signal handler writes only the stack of the main thread: it runs there,
so it can always look, and that stack stands still. Other threads may begin and end meanwhile, so our own thread writes
theirs, while it holds the GIL. If it cannot get the GIL, the main thread's stack shows what holds it.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NamedTuple

from softrun.runtime.channel.ownership import claimant, is_running
from softrun.runtime.channel.page import BEAT, OWNER, PING, SHOWS, STEP, TOOK, Page
from softrun.runtime.channel.writes import Writes
from softrun.runtime.clock import boottime_ns

BEAT_INTERVAL_S = 0.25
WRITING_S = 3600.0
"""How long writing may count as progress in one block: longer than a checkpoint takes."""
STACKS_SIGNAL = signal.SIGRTMIN + 7
"""On this signal a worker's main thread writes its Python stack to standard error, whatever it is doing."""
SHOWN_THREADS = SHOWN_FRAMES = 100

_log = logging.getLogger("softrun.runtime")


class LastProgress(NamedTuple):
    """The progress that a worker has shown."""

    pid: int
    last_s: float
    """The older of its last beat and ping, by the agent's clock as if the machine had slept before them; now, if the
    process that showed them has ended: the worker is another process, which has shown nothing yet."""
    step: int | None
    step_s: float
    """How long the last step took, in this world or an earlier one; 0 if that is not known."""


def read_progress(page: Page) -> LastProgress | None:
    """The worker's progress; None if it shows none."""
    if not page.is_in_use:
        return None
    words = page.words
    owner, beat, ping, took, step = (words[which] for which in (OWNER, BEAT, PING, TOOK, STEP))
    ago_ns = time.monotonic_ns() - min(at for at in (beat, ping) if at) if is_running(owner) else 0
    return LastProgress(claimant(owner), (boottime_ns() - ago_ns) / 1e9, step - 1 if step else None, took / 1e9)


class Progress:
    """The worker's end, for a page that this process has claimed. Once another process owns it, nothing is written.
    Make it in the main thread.

    `each_beat` is called in a thread of softrun at every beat, and must not wait.
    """

    def __init__(self, page: Page, each_beat: Callable[[], None] = lambda: None) -> None:
        self._words = page.words
        self._owner = page.words[OWNER]
        self._each_beat = each_beat
        self._completed_at = 0
        self._asked = self._failed = self._withheld = False
        self._writes: Writes | None = None  # in a block of `writing`
        self._shown = page.words[SHOWS]
        self._ended = threading.Event()
        self._call = _PENDING(self._beat)  # kept: the interpreter holds a bare pointer to it
        _show_stack_on_signal()
        self.begin_world()
        self._words[BEAT] = time.monotonic_ns()
        page.begin()
        self._thread = threading.Thread(target=self._keep_beating, name="softrun-progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Show no more progress, from the main thread: the agent looks for none until the next one is made."""
        self._ended.set()
        self._thread.join()
        if self._words[OWNER] == self._owner:
            self._words[BEAT] = 0  # it is not in use
        end = time.monotonic() + BEAT_INTERVAL_S
        while self._asked and time.monotonic() < end:  # the interpreter must not call what is gone
            time.sleep(0.001)
        with suppress(ValueError):
            faulthandler.unregister(STACKS_SIGNAL)

    def ping(self) -> None:
        """The trainer makes progress. Costs less than a microsecond."""
        if self._words[OWNER] == self._owner:
            self._words[PING] = time.monotonic_ns()
            if self._withheld:
                self._words[BEAT] = self._words[PING]

    def withhold(self, withheld: bool) -> None:
        """While withheld, only pings count, not the main thread's byte code: it may be polling for ever."""
        self._withheld = withheld

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A block in which it is progress, too, if the process writes, while the main thread may sit in one call."""
        outer = self._writes
        self._writes = outer or Writes(time.monotonic() + WRITING_S)
        try:
            yield
        finally:
            self._writes = outer

    @property
    def is_own(self) -> bool:
        """Whether this is still the process whose progress the page shows."""
        return bool(self._words[OWNER] == self._owner) and claimant(self._owner) == os.getpid()

    @property
    def has_worked(self) -> bool:
        """Whether the trainer has completed a step in this world, or pinged in it."""
        return bool(self._words[STEP] or self._words[PING])

    def hold(self) -> None:
        """The trainer waits because it was told to: it cannot ping, and its step only seems to take longer."""
        self._completed_at = 0
        if self._words[PING]:
            self.ping()
        self._beat(None)

    def idle(self) -> None:
        """No step follows in this world: how long the last one took says nothing of the next."""
        if self._words[OWNER] == self._owner:
            self._words[TOOK] = 0

    def completed(self, step: int) -> None:
        """The worker has completed this step of its world. It may say so more than once."""
        words = self._words
        if words[OWNER] != self._owner or words[STEP] == step + 1:
            return
        now = time.monotonic_ns()
        if self._completed_at:
            words[TOOK] = now - self._completed_at
        self._completed_at = now
        words[STEP] = step + 1

    def begin_world(self) -> None:
        """A world begins: no ping and no step counts yet."""
        self._completed_at = 0
        if self._words[OWNER] == self._owner:
            self._words[PING] = self._words[STEP] = 0

    def _keep_beating(self) -> None:
        while not self._ended.wait(BEAT_INTERVAL_S):
            if not self._asked:
                self._asked = True
                if ctypes.pythonapi.Py_AddPendingCall(self._call, None) != 0:
                    self._asked = False  # too many pending calls wait already
            if self._words[SHOWS] != self._shown:
                self._shown = self._words[SHOWS]
                show_other_stacks()
            self._count_writes()
            self._call_each_beat()

    def _count_writes(self) -> None:
        words, writes = self._words, self._writes
        if writes is not None and words[OWNER] == self._owner and not self._withheld and writes.go_on():
            words[BEAT] = time.monotonic_ns()
            if words[PING]:
                words[PING] = words[BEAT]

    def _call_each_beat(self) -> None:
        try:
            self._each_beat()
        except Exception:
            if not self._failed:
                self._failed = True
                _log.exception("what is looked at with every beat failed, and may again")

    def _beat(self, _: object) -> int:
        """Write the beat, in the main thread between two byte codes."""
        self._asked = False
        if self._words[OWNER] == self._owner and not self._withheld:
            self._words[BEAT] = time.monotonic_ns()
        return 0


_PENDING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def _show_stack_on_signal() -> None:
    # When the interpreter ends faulthandler restores what it found: the default action would end the process.
    signal.signal(STACKS_SIGNAL, signal.SIG_IGN)
    try:
        faulthandler.register(STACKS_SIGNAL, file=sys.__stderr__ or 2, all_threads=False)
    except (OSError, RuntimeError, ValueError) as error:
        _log.warning("the stacks of this worker will not be shown if it hangs: %s", error)


def show_other_stacks() -> None:
    """Write the stacks of all threads except the main one and this one to standard error."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    known = (threading.main_thread().ident, threading.get_ident())
    others = [(ident, frame) for ident, frame in sys._current_frames().items() if ident not in known]
    lines = []
    for ident, frame in others[:SHOWN_THREADS]:
        lines += [f"Thread {names.get(ident, hex(ident))} (most recent call first):", *_lines(frame)]
    if len(others) > SHOWN_THREADS:
        lines.append(f"and {len(others) - SHOWN_THREADS} more threads")
    if lines:
        with suppress(OSError):  # to the descriptor: the hung thread may hold the stream's lock
            os.write(2, ("\n".join(lines) + "\n").encode(errors="replace"))


def _lines(frame: FrameType | None) -> list[str]:
    lines: list[str] = []
    while frame is not None and len(lines) < SHOWN_FRAMES:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return lines
