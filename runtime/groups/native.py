"""Threads that call into native code, torch's for the most part, which may hold them for long.

They must have come back before the interpreter ends. CPython before 3.14 ends a daemon thread that then asks for its
lock by `pthread_exit`; C++ cannot be unwound by that, and a process whose work was done is aborted ("terminate called
without an active exception"). So when the process ends they are recalled, waited for, and no more are started.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable

RECALLED_S = 5.0
"""How long an ending process waits for threads that it has recalled: for two of TCPStore's attempts to connect."""
EXIT_S = 1.0
"""How long for the others, some of which never come back."""

Recall = Callable[[], object]

_running: dict[threading.Thread, Recall | None] = {}
_lock = threading.RLock()  # a signal's handler may come here, too
_process_ends = False


def start(function: Callable[[], object], name: str, recall: Recall | None = None) -> threading.Thread:
    """Call the function in a daemon thread. `recall`, called in any thread, has it come back soon.

    When the process ends already, nothing is called.
    """

    def run() -> None:
        try:
            function()
        finally:
            with _lock:
                _running.pop(thread, None)

    with _lock:
        if _process_ends:
            thread = threading.Thread(target=lambda: None, name=name, daemon=True)
        else:
            thread = threading.Thread(target=run, name=name, daemon=True)
            _running[thread] = recall
    thread.start()
    return thread


@atexit.register
def _await_all() -> None:
    global _process_ends
    with _lock:
        _process_ends = True
        running = list(_running.items())
    for _, recall in running:
        if recall is not None:
            recall()
    began = time.monotonic()
    for thread, recall in sorted(running, key=lambda one: one[1] is None):
        end = began + (EXIT_S if recall is None else RECALLED_S)
        if thread.is_alive():  # one may have been interrupted before it was started
            thread.join(max(0.0, end - time.monotonic()))


def _begin_in_child() -> None:
    global _lock, _process_ends
    _lock = threading.RLock()
    _running.clear()
    _process_ends = False


os.register_at_fork(after_in_child=_begin_in_child)
