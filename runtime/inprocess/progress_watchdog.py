"""Showing progress to what watches a rank: the agent, which ends ranks that hang."""

from __future__ import annotations

from softrun.runtime import worker


class ProgressWatchdog:
    """This rank's progress, for code that has no CallWrapper at hand. Outside a wrapped call it does nothing.

    Executing byte code in the main thread is progress, too; nobody needs to show that.
    """

    def ping(self) -> None:
        """As `CallWrapper.ping`: after the first in an iteration, others must follow within the timeouts."""
        if worker.is_open():
            worker.ping()

    def reset(self) -> None:
        """Count the timeouts from now on."""
        if worker.is_open():
            worker.refresh_progress()
