"""What ends the function on a rank when the job restarts it."""

from __future__ import annotations

from softrun.runtime.interrupt import RestartRequest

__all__ = ["RankShouldRestart"]

RankShouldRestart = RestartRequest
