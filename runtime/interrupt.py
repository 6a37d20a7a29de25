"""Interrupting the main thread: an exception is raised there, and raised again until the call ends.

A signal handler raises it, which Python runs in the main thread between two byte codes. So it also ends calls that
signals can interrupt, such as `time.sleep`, a lock or a read; an exception that another thread sets
(`PyThreadState_SetAsyncExc`) does not. The handler also sees where it runs: it raises nothing outside the scope, in an
atomic block, or in a clean-up that the last exception has caused, unless that clean-up takes too long. Nor where a lock
that others need would stay locked (`with condition` takes its lock in a function, and the block begins behind it), or
where an event of the channel was read and not yet kept; nor in a `__del__`, such as a DataLoader's, from which Python
lets no exception out, and shows it instead; nor where a module is imported: half of `torch._dynamo`, which torch
imports when it is first needed, would be all that later runs find.
"""

from __future__ import annotations

import functools
import importlib._bootstrap
import logging
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from softrun.runtime.channel.line import Line

if TYPE_CHECKING:
    from typing_extensions import Self

SIGNAL = signal.SIGURG
"""It is ignored by default, so a late signal does no harm, and few programs use it."""
AGAIN_S = 0.02
MOST_PUT_OFF = 50
"""How often a run is spared because of where it is: at a lock that nobody gives back it would be for ever."""
MOST_PUT_OFF_IMPORTING = 1500
"""The same where it imports a module, so half a minute: a module that trains while it is imported does so for long."""

Result = TypeVar("Result")

_log = logging.getLogger("softrun.runtime")


class RestartRequest(BaseException):
    """The world has changed: leave the wrapped function. Do not catch this, or raise it again."""


class Interrupt:
    """Make, enter and run it in the main thread; any thread may call `request`.

    Requests have rising numbers. A run is interrupted by requests above the number that it began with.

    A clean-up that an interruption has caused (`finally`, `__exit__`, `except`) has `patience_s` seconds. Then it is
    interrupted as well, and `overstays(True)` is called; `overstays(False)` follows when the run has ended.
    """

    def __init__(self, patience_s: float = inf, overstays: Callable[[bool], None] = lambda _: None) -> None:
        self.patience_s = patience_s
        self._overstays = overstays
        self._raised_at = inf  # when the exception was last raised in this run
        self._since: int | None = None  # the number that the run under way began with; None: nothing may be raised
        self._requested = 0
        self._reason = ""  # of the newest request
        self._way = ""  # the code path to where it was last raised in this run
        self._put_off = Counter[int]()  # how often this run was spared because of where it was, by how often it may be
        self._blocks = 0  # how many atomic blocks the main thread is in
        self._left = threading.Event()
        self._lock = threading.RLock()  # held by atomic blocks and by aborts
        self._before: Callable[[int, FrameType | None], Any] | int | None = None

    def __enter__(self) -> Self:
        self._before = signal.signal(SIGNAL, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(SIGNAL, self._before if self._before is not None else signal.SIG_DFL)

    def run(self, function: Callable[[], Result], since: int) -> Result:
        """Call the function; RestartRequest is raised in it once there is a request above `since`."""
        # No context manager: the exception may be raised at any byte code in here, or in contextlib.
        try:
            try:
                self._forget_the_last()
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
        """Go on in the run around the one that has just ended; requests above `since` interrupt it."""
        self._forget_the_last()
        self._since = since
        if self._is_due():
            request = functools.partial(self.request, self._requested, abort)
            threading.Thread(target=request, name="softrun-restart", daemon=True).start()

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Nothing is aborted or interrupted in this block. Once an interruption has begun, the block is not entered."""
        with self._lock:
            self._raise_if_due(sys._getframe())
            self._blocks += 1
            try:
                yield
            finally:
                self._blocks -= 1
        self._raise_if_due(sys._getframe())

    def request(self, number: int, abort: Callable[[], None], reason: str = "") -> None:
        """Call `abort`, and interrupt the run until it has ended. Waits for an atomic block to end.

        `reason` becomes the text of the exception.
        """
        if number >= self._requested:
            self._requested, self._reason = number, reason or self._reason
        with self._lock:
            if not self._is_due():
                return  # the run has ended, or raises the exception when it begins
            try:
                abort()
            finally:
                main = threading.main_thread().ident
                while main is not None and self._is_due():
                    signal.pthread_kill(main, SIGNAL)
                    self._left.wait(AGAIN_S)

    def abort(self, abort: Callable[[], None]) -> None:
        """Call `abort` after a run has ended, in a thread as a request does; an abort under way ends first."""

        def call() -> None:
            with self._lock:
                abort()

        thread = threading.Thread(target=call, name="softrun-abort", daemon=True)
        thread.start()
        thread.join()

    def _forget_the_last(self) -> None:
        self._way, self._raised_at = "", inf
        self._put_off.clear()
        self._left.clear()

    def _is_due(self) -> bool:
        return self._since is not None and self._requested > self._since and not self._blocks

    def _interrupted(self, signum: int, frame: FrameType | None) -> None:
        """The signal handler, in the main thread."""
        if not self._is_due():
            if callable(self._before):
                self._before(signum, frame)
            return
        if self._put_off[most := _most_put_off(frame)] < most:
            self._put_off[most] += 1  # the signal comes again
            return
        if self._is_being_handled():
            if time.monotonic() < self._raised_at + self.patience_s:
                return  # the run is ending: it is in a clean-up
            _log.warning("a clean-up has taken %g s: interrupting it at %s", self.patience_s, _way(frame))
            self._overstays(True)
        elif self._way:
            _log.debug("a restart was suppressed: raised at %s; going on at %s", self._way, _way(frame))
        self._raise_if_due(frame)

    def _raise_if_due(self, frame: FrameType | None) -> None:
        if self._is_due():
            self._way, self._raised_at = _way(frame), time.monotonic()
            raise RestartRequest(self._reason or f"event {self._requested} has ended this world")

    @staticmethod
    def _is_being_handled() -> bool:
        error = sys.exc_info()[1]
        while error is not None:
            if isinstance(error, RestartRequest):
                return True
            error = error.__context__
        return False


_WAIT = threading.Condition.wait.__code__
_AT_A_LOCK = {
    vars(threading.Condition)[name].__code__ for name in ("__enter__", "__exit__", "_release_save", "_acquire_restore")
}
_IMPORT = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]
_WITH_LOCKS = {logging.Logger.handle.__code__.co_filename, _IMPORT.co_filename}


def _most_put_off(frame: FrameType | None) -> int:
    """How often an exception here is put off: it may leave a lock behind that others need, or half of a module, or lose
    an event of the channel, or be lost itself."""
    places = list(_frames_of_run(frame))
    if any(place.f_code is _IMPORT for place in places):
        return MOST_PUT_OFF_IMPORTING
    if any(place.f_code.co_name == "__del__" for place in places):
        return MOST_PUT_OFF
    if frame is None or frame.f_code is Line.ask.__code__:
        return 0  # who waits for a reply may lose it: the next call has another number
    if frame.f_code is _WAIT:
        return 0 if "saved_state" in frame.f_locals else MOST_PUT_OFF  # who waits takes its lock again whatever happens
    if frame.f_code in _AT_A_LOCK or frame.f_code.co_filename in _WITH_LOCKS:
        return MOST_PUT_OFF
    is_at_the_channel = any(_module(place).startswith("softrun.runtime.channel.") for place in places)
    return MOST_PUT_OFF if is_at_the_channel else 0


def _frames_of_run(frame: FrameType | None) -> Iterator[FrameType]:
    """That frame, and those around it that the run consists of."""
    while frame is not None and frame.f_code is not Interrupt.run.__code__:
        yield frame
        frame = frame.f_back


def _way(frame: FrameType | None) -> str:
    """The code path from the run to that frame, without this package's own frames."""
    places = [
        f"{place.f_code.co_filename}:{place.f_lineno} in {place.f_code.co_name}"
        for place in _frames_of_run(frame)
        if not _module(place).startswith(("softrun.", "contextlib"))
    ]
    return " > ".join(reversed(places))


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
