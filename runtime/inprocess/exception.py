"""What the wrapper and its callbacks raise, under the names of nvidia-resiliency-ext."""

from __future__ import annotations

import builtins


class RestartError(Exception):
    """The wrapper, or one of its callbacks, cannot go on on this rank."""


class RestartAbort(BaseException):
    """Raise it in a callback or in the function to end the wrapper instead of restarting it."""


class HealthCheckError(RestartError):
    """This rank is not fit for another iteration."""


class InternalError(RestartError):
    """softrun has a bug."""


class TimeoutError(RestartError, builtins.TimeoutError):  # noqa: A001
    """Something did not end in time."""


class BarrierError(RestartError):
    """Ranks could not meet."""


class BarrierTimeout(BarrierError, TimeoutError):  # noqa: N818
    """Not all ranks came in time."""


class BarrierOverflow(BarrierError):  # noqa: N818
    """More ranks came than were to meet."""
