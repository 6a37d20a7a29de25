"""What a process that is an agent, and nothing else, writes to standard error."""

from __future__ import annotations

import logging
import os
import sys

logger = logging.getLogger("softrun")


def log_to_stderr(debug: bool) -> None:
    """Log at torch's level, LOGLEVEL, unless the logger has a handler already."""
    if logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"softrun[{os.getpid()}] %(asctime)s.%(msecs)03d %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    # The variable is torch's, and so is its default.
    level = logging.getLevelName(os.environ.get("LOGLEVEL", "WARNING").upper())
    logger.setLevel(logging.DEBUG if debug else level if isinstance(level, int) else logging.WARNING)
    logger.propagate = False


def quieten_torch() -> None:
    """Import torch so that its C++ side does not print a stack for every connection that is closed.

    Only this agent gets the setting: the workers get the environment as it was.
    """
    name = "TORCH_CPP_LOG_LEVEL"
    if name in os.environ or "torch" in sys.modules:
        return
    os.environ[name] = "ERROR"
    try:
        import torch  # noqa: F401
    finally:
        del os.environ[name]
