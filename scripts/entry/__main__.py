"""`python -m softrun …` and the console script `softrun`."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the launcher with the process's arguments; returns its exit code."""
    # Before there is a job Ctrl-C ends this process at once: an exception in the middle of imports may be swallowed
    # there, or is shown with all their frames.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from softrun.agent.cli import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    # Python puts the working directory first, for modules of the user's: what the launcher itself imports is not there.
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path.append(sys.path.pop(0))
    sys.exit(main())
