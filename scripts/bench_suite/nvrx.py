"""The in-process wrapper of nvidia-resiliency-ext, as far as it is a launcher's match: a worker is killed.

It starts no processes, so there are no nodes, and a lost rank never comes back. See bench_nvrx.py.
"""

from __future__ import annotations

import bench_nvrx
from measuring import Record

FAULTS = {"worker_killed": "kill"}
STARTS = 3
SURVIVORS = bench_nvrx.RANKS - 1


def nvrx(settings: str, measure: str, patience_s: float) -> Record:
    for _ in range(STARTS):  # with the fastest settings it may report a fault that does not exist, before it has begun
        found = bench_nvrx.measure(FAULTS[measure], settings, patience_s)
        if found["fault_at"] is not None:
            break
    else:
        return {"untried": found["note"]}
    if found["next_step_s"] is None:
        return {"failed": found["note"]}
    return {"gap_s": found["next_step_s"], "survivors": SURVIVORS, "kept": SURVIVORS, "note": "it replaces nobody"}
