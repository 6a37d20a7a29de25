"""Waiting for a call that may never end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

from softrun.runtime.groups import native


def call_bounded(fn: Callable[[], object], timeout: timedelta, name: str) -> bool:
    """Call it in a daemon thread called `name`, raise what it raises, and return whether it ended within the timeout.

    A call that did not end is left alone: it holds its thread until the process ends, and does not keep the process.
    """
    raised: list[BaseException] = []

    def call() -> None:
        try:
            fn()
        except BaseException as error:
            raised.append(error)

    thread = native.start(call, name)
    thread.join(min(timeout.total_seconds(), threading.TIMEOUT_MAX))
    if thread.is_alive():
        return False
    if raised:
        raise raised.pop()
    return True
