"""Wakes a process when a file appears in a directory, with the kernel's notifications if there are any."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent, FileSystemEventHandler
    from watchdog.observers.api import BaseObserver

POLL_INTERVAL_S = 0.05
STOP_S = 5.0
"""How long a callback under way is waited for."""

_log = logging.getLogger("softrun.runtime")
_watchdog_log = logging.getLogger("watchdog.observers.inotify")


def _is_news(record: logging.LogRecord) -> bool:
    """Whether watchdog says more than that a file was closed just when the watch was stopped: that is no error."""
    return not record.getMessage().endswith("called when the thread is inactive")


class DirectoryWatcher:
    """Calls `callback(path)` in a thread of its own soon after a file that was written is closed at `path`.

    Names with a leading dot are temporary by the channel's protocol, and are not reported. A call is only a hint: a
    change may be reported twice, so the callback must look for itself. Changes before `start` returned may go
    unreported, so look once after it. If there are no notifications, it polls, and the log says so.
    """

    def __init__(self, directory: Path, callback: Callable[[Path], None]) -> None:
        self._directory = directory
        self._callback = callback
        self._observer: BaseObserver | None = None

    def start(self) -> None:
        """Watch from now on. If the kernel has no notifications left, it polls the directory and logs that once."""
        # Imported here: watchdog costs 25 ms, and most of what imports softrun.runtime never waits.
        try:
            from watchdog.events import FileClosedEvent
            from watchdog.observers.inotify import InotifyObserver

            _watchdog_log.addFilter(_is_news)
            self._run(InotifyObserver(), [FileClosedEvent])
        except (ImportError, OSError) as error:
            from watchdog.observers.polling import PollingObserver

            _log.warning(
                "no file notifications for %s (%s): it is polled every %g s; "
                "raise fs.inotify.max_user_instances and max_user_watches to be woken at once",
                self._directory,
                error,
                POLL_INTERVAL_S,
            )
            # No event filter: polling reports a file that replaced another as modified or created.
            self._run(PollingObserver(timeout=POLL_INTERVAL_S), None)

    def stop(self) -> None:
        """Stop: no call begins after this. The callback may call it."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            if threading.current_thread() is not observer:
                observer.join(STOP_S)

    def _run(self, observer: BaseObserver, kinds: list[type[FileSystemEvent]] | None) -> None:
        observer.schedule(self._handler(), str(self._directory), event_filter=kinds)
        observer.start()
        self._observer = observer

    def _handler(self) -> FileSystemEventHandler:
        from watchdog.events import FileSystemEventHandler

        class Handler(FileSystemEventHandler):
            def on_any_event(_, event: FileSystemEvent) -> None:  # noqa: N805
                self._seen(event)

        return Handler()

    def _seen(self, event: FileSystemEvent) -> None:
        path = Path(os.fsdecode(event.dest_path or event.src_path))
        if event.is_directory or event.event_type == "deleted" or path.name.startswith("."):
            return
        if self._observer is None:
            return
        try:
            self._callback(path)
        except Exception:
            _log.exception("a change of %s was not handled", path)
