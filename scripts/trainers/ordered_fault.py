"""A fault on order, for trainers: when DIRECTORY/fault-<rank> appears, this rank does what stands there.

Whoever orders writes the file; the rank removes it and leaves the time, by the monotonic clock, in DIRECTORY/fault-at.
"""

import time
from pathlib import Path


class OrderedFault:
    def __init__(self, directory: Path, rank: int) -> None:
        self._directory = directory
        self._order = directory / f"fault-{rank}"

    def befall(self) -> None:
        """Call it in every step."""
        if not self._order.exists():
            return
        kind = self._order.read_text()
        self._order.unlink()
        note = self._directory / "fault-at.new"
        note.write_text(repr(time.monotonic()))
        note.rename(self._directory / "fault-at")
        if kind == "sleep":
            time.sleep(10000)
        raise RuntimeError("injected")
