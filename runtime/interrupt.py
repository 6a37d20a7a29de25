"""Interrupting the main thread: an exception of ours is raised there, and again until it is heeded.

It is raised by a signal handler, which Python runs in the main thread between two byte codes. So it also ends calls
that signals can interrupt, such as `time.sleep`, a lock or a read, which an exception that is set from another thread
(`PyThreadState_SetAsyncExc`) does not; and the handler can see where it runs: nothing is raised outside of the scope,
in an atomic block, or into a clean-up that the last one has caused, unless that takes too long.
"""

from __future__ import annotations

import functools
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

SIGNAL = signal.SIGURG
"""It is ignored by default, so a late one does no harm, and few programs use it."""
AGAIN_S = 0.02

Result = TypeVar("Result")

_log = logging.getLogger("softrun.runtime")


class RestartRequest(BaseException):
    """The world has changed: the wrapped function is to be left. Do not catch it, or raise it again."""


class Interrupt:
    """Made, entered and run in the main thread; `request` may be called from any.

    Requests have rising numbers. A run is interrupted by those above the number that it was begun with.

    A clean-up that an interruption has caused (`finally`, `__exit__`, `except`) has `patience_s` seconds. Then it is
    interrupted itself, and `overstays(True)` is called; `overstays(False)` when the run has ended after all.
    """

    def __init__(self, patience_s: float = inf, overstays: Callable[[bool], None] = lambda _: None) -> None:
        self.patience_s = patience_s
        self._overstays = overstays
        self._raised_at = inf  # when it was raised last in this run
        self._since: int | None = None  # of the run that is under way; None where nothing may be raised
        self._requested = 0
        self._way = ""  # the code path to where it was last raised in this run
        self._blocks = 0  # atomic ones that the main thread is in, one in the other
        self._left = threading.Event()
        self._lock = threading.RLock()  # of atomic blocks, and of what aborts
        self._before: Callable[[int, FrameType | None], Any] | int | None = None

    def __enter__(self) -> Self:
        self._before = signal.signal(SIGNAL, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(SIGNAL, self._before if self._before is not None else signal.SIG_DFL)

    def run(self, function: Callable[[], Result], since: int) -> Result:
        """Call the function; RestartRequest is raised in it once there is a request above `since`."""
        # No context manager: the exception may come at any byte code in here, or in contextlib's.
        try:
            try:
                self._way, self._raised_at = "", inf
                self._left.clear()
                self._since = since
                self._raise_if_due(None)
                return function()
            finally:
                self._since = None
        finally:
            self._since = None
            self._left.set()
            self._overstays(False)

    def resume(self, since: int, abort: Callable[[], None]) -> None:
        """Go on in the run around the one that has just ended, from that number on."""
        self._way, self._raised_at = "", inf
        self._left.clear()
        self._since = since
        if self._is_due():
            request = functools.partial(self.request, self._requested, abort)
            threading.Thread(target=request, name="softrun-restart", daemon=True).start()

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Nothing is aborted or interrupted in this block, and it is not entered once that has begun."""
        with self._lock:
            self._raise_if_due(sys._getframe())
            self._blocks += 1
            try:
                yield
            finally:
                self._blocks -= 1
        self._raise_if_due(sys._getframe())

    def request(self, number: int, abort: Callable[[], None]) -> None:
        """Call `abort`, and interrupt the run until it has ended. Waits while that is atomic."""
        self._requested = max(self._requested, number)
        with self._lock:
            if not self._is_due():
                return  # it has ended, or is raised when it begins
            try:
                abort()
            finally:
                main = threading.main_thread().ident
                while main is not None and self._is_due():
                    signal.pthread_kill(main, SIGNAL)
                    self._left.wait(AGAIN_S)

    def abort(self, abort: Callable[[], None]) -> None:
        """Call `abort` after a run has ended, in a thread as a request does; one that has begun comes to its end."""

        def call() -> None:
            with self._lock:
                abort()

        thread = threading.Thread(target=call, name="softrun-abort", daemon=True)
        thread.start()
        thread.join()

    def _is_due(self) -> bool:
        return self._since is not None and self._requested > self._since and not self._blocks

    def _interrupted(self, signum: int, frame: FrameType | None) -> None:
        """In the main thread."""
        if not self._is_due():
            if callable(self._before):
                self._before(signum, frame)
            return
        if self._is_being_handled():
            if time.monotonic() < self._raised_at + self.patience_s:
                return  # it is on its way out, by way of somebody's clean-up
            _log.warning("a clean-up has taken %g s: interrupting it at %s", self.patience_s, _way(frame))
            self._overstays(True)
        elif self._way:
            _log.debug("a restart was suppressed: raised at %s; going on at %s", self._way, _way(frame))
        self._raise_if_due(frame)

    def _raise_if_due(self, frame: FrameType | None) -> None:
        if self._is_due():
            self._way, self._raised_at = _way(frame), time.monotonic()
            raise RestartRequest(f"event {self._requested} has ended this world")

    @staticmethod
    def _is_being_handled() -> bool:
        error = sys.exc_info()[1]
        while error is not None:
            if isinstance(error, RestartRequest):
                return True
            error = error.__context__
        return False


def _way(frame: FrameType | None) -> str:
    """Through the run's code to that frame, without this package's own."""
    places: list[str] = []
    while frame is not None and frame.f_code is not Interrupt.run.__code__:
        if not frame.f_globals.get("__name__", "").startswith(("softrun.", "contextlib")):
            places.insert(0, f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back
    return " > ".join(places)
