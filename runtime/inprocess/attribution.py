"""Who failed, and how."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from softrun.runtime.bounds import printed
from softrun.runtime.events import Interruption, WorkerEvent, headline

__all__ = ["Interruption", "InterruptionRecord", "describe", "format_interruption_records", "records_of"]


@dataclass(frozen=True)
class InterruptionRecord:
    """One rank's fault. `str()` and `from_str` are inverse."""

    rank: int
    interruption: Interruption

    @classmethod
    def from_str(cls, string: str) -> InterruptionRecord:
        """Raises ValueError if the text is not a record's."""
        rank, kind = re.search(r"rank=(\d+)", string), re.search(r"Interruption\.(\w+)", string)
        if rank is None or kind is None or kind[1] not in Interruption.__members__:
            raise ValueError(f"{string!r} is not the text of an InterruptionRecord")
        return cls(int(rank[1]), Interruption[kind[1]])


def records_of(event: WorkerEvent) -> tuple[InterruptionRecord, ...]:
    """Who ended the world before this event's, or that of a PAUSED event, as far as it is known.

    A rank that is no longer there and told of no fault is TERMINATED, whether it died, was ended, or has left.
    """
    told = () if event.fault is None else event.fault.causes
    known = {rank for rank, _ in told}
    faults = [InterruptionRecord(rank, kind) for rank, kind in told]
    return (*faults, *(InterruptionRecord(r, Interruption.TERMINATED) for r in event.lost if r not in known))


def describe(event: WorkerEvent) -> str:
    """The same in words: "EXCEPTION on rank 1; TERMINATED on rank 2: fault of rank 1 …"; empty if nothing is known."""
    text = format_interruption_records(records_of(event))
    fault = headline(printed(event.fault.text, indent="")) if event.fault is not None and event.fault.text else ""
    return ": ".join(part for part in (text, fault) if part)


def format_interruption_records(records: Iterable[InterruptionRecord]) -> str:
    """The records in one line, by kind: "EXCEPTION on ranks 1, 3; TERMINATED on rank 2"."""
    ranks: dict[Interruption, set[int]] = {}
    for record in records:
        ranks.setdefault(record.interruption, set()).add(record.rank)
    return "; ".join(f"{kind.name} on {_listed(ranks[kind])}" for kind in Interruption if kind in ranks)


def _listed(ranks: set[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"
