"""Interrupting the main thread: an exception of ours is raised there, and again until it is heeded.

It is raised by a signal handler, which Python runs in the main thread between two byte codes. So it also ends calls
that signals can interrupt, such as `time.sleep`, a lock or a read, which an exception that is set from another thread
(`PyThreadState_SetAsyncExc`) does not; and the handler runs where it can look: nothing is raised outside of the scope,
in an atomic block, or into a clean-up that the last one has caused.
"""

from __future__ import annotations

import functools
import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

SIGNAL = signal.SIGURG
"""It is ignored where nobody handles it, so one that comes late does no harm, and few programs use it."""
AGAIN_S = 0.02

Result = TypeVar("Result")

_log = logging.getLogger("softrun.runtime")


class RestartRequest(BaseException):
    """The world has changed: the wrapped function is to be left. Do not catch it, or raise it again."""


class Interrupt:
    """Made, entered and run in the main thread; `request` may be called from any.

    Requests have rising numbers. A run is interrupted by those above the number that it was begun with.
    """

    def __init__(self) -> None:
        self._since: int | None = None  # of the run that is under way; None where nothing may be raised
        self._requested = 0
        self._where = ""  # the last place where it was raised in this run
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
                self._where = ""
                self._left.clear()
                self._since = since
                self._raise_if_due()
                return function()
            finally:
                self._since = None
        finally:
            self._since = None
            self._left.set()

    def resume(self, since: int) -> None:
        """Go on in the run around the one that has just ended, from that number on."""
        self._where = ""
        self._left.clear()
        self._since = since
        if self._is_due():
            request = functools.partial(self.request, self._requested, _nothing)
            threading.Thread(target=request, name="softrun-restart", daemon=True).start()

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Nothing is aborted or interrupted in this block, and it is not entered once that has begun."""
        with self._lock:
            yield
        self._raise_if_due()

    def request(self, number: int, abort: Callable[[], None]) -> None:
        """Call `abort`, and interrupt the run until it has ended. Waits while that is atomic."""
        self._requested = max(self._requested, number)
        with self._lock:
            if not self._is_due():
                return  # it has ended, or is raised when it begins
            abort()
            main = threading.main_thread().ident
            while main is not None and self._is_due():
                signal.pthread_kill(main, SIGNAL)
                self._left.wait(AGAIN_S)

    def _is_due(self) -> bool:
        return self._since is not None and self._requested > self._since

    def _interrupted(self, signum: int, frame: FrameType | None) -> None:
        """In the main thread."""
        if not self._is_due():
            if callable(self._before):
                self._before(signum, frame)
            return
        if self._where:
            if self._is_being_handled():
                return  # it is on its way out, by way of somebody's clean-up
            _log.debug("a restart was suppressed: raised at %s, going on at %s", self._where, _place(frame))
        self._where = _place(frame)
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self._is_due():
            raise RestartRequest(f"event {self._requested} has ended this world")

    @staticmethod
    def _is_being_handled() -> bool:
        error = sys.exc_info()[1]
        while error is not None:
            if isinstance(error, RestartRequest):
                return True
            error = error.__context__
        return False


def _nothing() -> None: ...


def _place(frame: FrameType | None) -> str:
    if frame is None:
        return "an unknown place"
    summary = traceback.extract_stack(frame, limit=1)[0]
    return f"{summary.filename}:{summary.lineno} in {summary.name}"
