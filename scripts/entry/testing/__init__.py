"""For tests: what workers saw of `live_workers`, and whether it was right.

    record(directory)              # once in every worker, before its first block
    history = gather(directory)    # when the job is over; or read_history(Path("history.json"))
    verdict = check(history)
    assert verdict, str(verdict)

The map, from the ground up. A module imports from those above it in this list, never from those below:

    history   the format, read and validated
    timeline  a history as the search reads it
    scene     what is certain between two events, and which decisions that allows
    search    all ways in which a history can have come about
    verdict   what is wrong, in words
    checker   `check`
    lives     what trainers cannot know of their own lives
    recorder  `Recorder`, one for each worker, and `gather`
    record    `record`, for trainers
    draw      a history as a picture
"""

from __future__ import annotations

from softrun.testing.checker import check
from softrun.testing.draw import draw
from softrun.testing.history import History, HistoryError, parse_history, read_history
from softrun.testing.record import record
from softrun.testing.recorder import Recorder, gather, record_failure
from softrun.testing.search import AmbiguousError
from softrun.testing.timeline import MODES, Mode
from softrun.testing.verdict import Verdict

__all__ = [
    "MODES",
    "AmbiguousError",
    "History",
    "HistoryError",
    "Mode",
    "Recorder",
    "Verdict",
    "check",
    "draw",
    "gather",
    "parse_history",
    "read_history",
    "record",
    "record_failure",
]
