"""`python -m softrun …` and the console script `softrun`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the launcher with the process's arguments; returns its exit code."""
    from softrun.agent.cli import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
