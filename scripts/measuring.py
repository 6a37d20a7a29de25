"""What the benchmarks have in common: clusters that last as long as one measurement, and how figures are told."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from local_cluster import LocalCluster

given_up = threading.Event()
"""Once it is set, what is measured in other threads waits for nothing any more."""

UNDISTURBED_S = 0.25
"""After a fault nobody looks for so long: the steps have their own times, and who reads them takes a processor."""

Record = dict[str, object]
"""One raw result, a line of JSON."""


@contextmanager
def cluster() -> Iterator[LocalCluster]:
    with tempfile.TemporaryDirectory(prefix="softrun-bench-") as directory, LocalCluster(Path(directory)) as here:
        yield here


def spread(values: Sequence[float]) -> str:
    return f"{min(values) * 1000:.0f} to {max(values) * 1000:.0f}"
