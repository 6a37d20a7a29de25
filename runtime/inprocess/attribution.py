"""Who failed, and how."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto


class Interruption(Enum):
    """What ended an iteration on a rank."""

    EXCEPTION = auto()
    """The function raised it."""
    BASE_EXCEPTION = auto()
    """The same, but it ends the rank."""
    SOFT_TIMEOUT = auto()
    HARD_TIMEOUT = auto()
    TERMINATED = auto()
    """Its process ended."""
    UNRESPONSIVE = auto()
    """Its node is silent."""
    MONITOR_PROCESS_EXCEPTION = auto()
    """Not used: no process monitors a rank here."""


@dataclass(frozen=True)
class InterruptionRecord:
    """One rank's fault. `str()` and `from_str` are inverse."""

    rank: int
    interruption: Interruption

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.interruption.name}"

    @classmethod
    def from_str(cls, string: str) -> InterruptionRecord:
        """Raises ValueError if the text is not a record's."""
        match = re.fullmatch(r"rank (\d+): (\w+)", string)
        if match is None or match[2] not in Interruption.__members__:
            raise ValueError(f"{string!r} is not the text of an InterruptionRecord")
        return cls(int(match[1]), Interruption[match[2]])


def format_interruption_records(records: Iterable[InterruptionRecord]) -> str:
    """The records in one line, by kind: "EXCEPTION on ranks 1, 3; TERMINATED on rank 2"."""
    ranks: dict[Interruption, set[int]] = {}
    for record in records:
        ranks.setdefault(record.interruption, set()).add(record.rank)
    return "; ".join(f"{kind.name} on {_listed(ranks[kind])}" for kind in Interruption if kind in ranks)


def _listed(ranks: set[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"
