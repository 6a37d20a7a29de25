"""`python -m softrun.testing`: whether what workers saw of `live_workers` was right."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from softrun.testing.checker import check
from softrun.testing.draw import draw
from softrun.testing.history import HistoryError, read_history
from softrun.testing.recorder import gather
from softrun.testing.timeline import MODES

VALID, INVALID, BAD_INPUT = range(3)


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge a history and say so in one line; returns 0 if it is valid, 1 if not, 2 if it cannot be read or judged."""
    parser = argparse.ArgumentParser(
        prog="python -m softrun.testing",
        description="Check what workers saw of live_workers. Exits with 0 if it was right, 1 if not, 2 on bad input.",
    )
    parser.add_argument("path", type=Path, help="a history as JSON, or the directory that the workers recorded it in")
    parser.add_argument("--mode", choices=MODES, default="atomic", help="how strictly to judge (default: %(default)s)")
    parser.add_argument("--draw", type=Path, metavar="FILE.svg", help="also draw the history, whatever the verdict")
    given = parser.parse_args(arguments)
    try:
        history = gather(given.path) if given.path.is_dir() else read_history(given.path)
        if given.draw is not None:
            given.draw.write_text(draw(history), encoding="utf-8")
        verdict = check(history, given.mode)
    except (HistoryError, OSError) as error:
        print(f"softrun.testing: {error}", file=sys.stderr)
        return BAD_INPUT
    print(f"{verdict}: {len(history.events)} events of {len(history.procs)} workers" if verdict else verdict)
    return VALID if verdict else INVALID


if __name__ == "__main__":
    sys.exit(main())
