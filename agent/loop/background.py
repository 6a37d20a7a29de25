"""Work that one thread does in the background, in order. The caller neither waits for it nor learns of its failure."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

FAREWELL_S = 10.0

logger = logging.getLogger("softrun")


class BackgroundQueue:
    """A thread of that name, and the work that it has yet to do."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], Any]) -> None:
        """Queue `work` after everything that was queued before. An exception in it is logged."""
        self._queue.put(work)

    def close(self, timeout_s: float = FAREWELL_S) -> None:
        """Wait until everything queued is done, but at most `timeout_s` seconds."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("%s did not end within %g s and is left behind", self._thread.name, timeout_s)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:
                logger.warning("%s: a task failed", self._thread.name, exc_info=True)
