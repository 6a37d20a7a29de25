"""Raw results: a record is a line of JSON. `measure` and `system` say of what; what ends in _s is a time in seconds.

If it did not happen, `failed` says why in one line, in place of the figures; if it could not be tried, `untried` does.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from measuring import Record


def write(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        print(json.dumps({"at": time.time(), **record}), file=file)


def read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def tried(records: Sequence[Record], measure: str, system: str) -> list[Record]:
    return [r for r in records if r["measure"] == measure and r.get("system") == system and "untried" not in r]


def values(records: Sequence[Record], measure: str, system: str, figure: str) -> list[float]:
    """Of each try that came to this figure."""
    found = [r.get(figure) for r in tried(records, measure, system)]
    return [float(value) for value in found if isinstance(value, (int, float))]


def median(records: Sequence[Record], measure: str, system: str, figure: str) -> float | None:
    """Of all tries; one that failed counts as infinitely long. None if no try has the figure."""
    found = values(records, measure, system, figure)
    failed = [r for r in tried(records, measure, system) if "failed" in r and figure not in r]
    return statistics.median([*found, *[math.inf] * len(failed)]) if found or failed else None


def all_of(records: Sequence[Record], figure: str) -> list[float]:
    """Where each record has a list of this figure."""
    return [value for record in records for value in record[figure]]  # type: ignore[attr-defined]


def most(records: Sequence[Record], measure: str, system: str, figure: str) -> float | None:
    return max(values(records, measure, system, figure), default=None)


def systems(records: Sequence[Record], measure: str) -> list[str]:
    """Those that this was measured of, in the order of their first records."""
    return list(dict.fromkeys(str(r["system"]) for r in records if r["measure"] == measure and "system" in r))
