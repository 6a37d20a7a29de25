"""Threads that call into native code, mostly torch's, which may hold them for long.

They must return before the interpreter ends. CPython before 3.14 calls `pthread_exit` on a daemon thread that asks for
the GIL after that. C++ cannot be unwound that way, so a process whose work is done aborts ("terminate called without an
active exception"). So when the process ends, these threads are recalled and waited for, and no more are started.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable

RECALLED_S = 5.0
"""How long an ending process waits for recalled threads: as long as two of TCPStore's attempts to connect."""
EXIT_S = 1.0
"""How long it waits for the others, some of which never return."""

Recall = Callable[[], object]

_running: dict[threading.Thread, Recall | None] = {}
_lock = threading.RLock()  # reentrant: a signal handler may come here, too
_process_ends = False


def start(function: Callable[[], object], name: str, recall: Recall | None = None) -> threading.Thread:
    """Call the function in a daemon thread. `recall`, which any thread may call, makes it return soon.

    If the process is already ending, nothing is called.
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
        if thread.is_alive():  # its start may have been interrupted
            thread.join(max(0.0, end - time.monotonic()))


def _begin_in_child() -> None:
    global _lock, _process_ends
    _lock = threading.RLock()
    _running.clear()
    _process_ends = False


os.register_at_fork(after_in_child=_begin_in_child)
