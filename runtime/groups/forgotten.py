"""Freeing threads that wait for a payload that gloo has forgotten.

When a connection ends, gloo tells whoever waits for a payload that was announced. It forgets those that are half done:
what was received in part (`rx_` in gloo/transport/tcp/pair.cc, `Pair::signalException`), and what is queued to be sent
(`tx_`: it tells only users of "bound" buffers, and torch is none). Whoever waits for one of these waits until the
group's timeout, half an hour, however its connections end. So whoever still waits a moment after the groups were cut is
freed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from softrun.runtime.groups import gloo_waits, native

STAYS_S = 0.1
"""Whoever is freed by the cut has left by then."""
WATCHED_S = 10.0
"""A thread that computes when its group is cut waits later."""


class Watch:
    """Frees whoever stays in a wait although all gloo groups of this process are about to be cut.

    `all_are_cut` says whether that still holds; it does not change while the lock is held. Once it does not, some waits
    are of new groups, and only the old groups' own threads are watched. The watch `before` this one ends.
    """

    def __init__(
        self, all_are_cut: Callable[[], bool], lock: AbstractContextManager[Any], before: Watch | None
    ) -> None:
        self._all_are_cut = all_are_cut
        self._lock = lock
        self._there = gloo_waits.threads()
        self._ended = threading.Event()
        if before is not None:
            before._ended.set()
        self._thread = native.start(self._watch, "softrun-abort-frees", recall=self._ended.set)

    def end(self) -> None:
        """Watch no more, and wait for the thread."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        end = time.monotonic() + WATCHED_S
        before: set[gloo_waits.Wait] = set()
        while not self._ended.wait(STAYS_S) and time.monotonic() < end:
            now = self._waits()
            if before & now:
                with self._lock:
                    for wait in before & self._waits():
                        gloo_waits.end(wait)
            before = now

    def _waits(self) -> set[gloo_waits.Wait]:
        if self._all_are_cut():
            return gloo_waits.waits(gloo_waits.threads())
        return gloo_waits.waits(thread for thread in self._there if gloo_waits.is_run_loop(thread))
