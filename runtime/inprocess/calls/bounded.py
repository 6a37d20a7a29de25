"""Calling what may never end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

from softrun.runtime.groups import native


def call_bounded(fn: Callable[[], object], timeout: timedelta, name: str) -> bool:
    """Call `fn` in a daemon thread named `name`. Returns whether it ended within the timeout; raises what it raises.

    A call that does not end is abandoned: it keeps its thread until the process ends, but not the process.
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
