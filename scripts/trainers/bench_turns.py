"""How long something takes that is done in turns, for the trainers of scripts/bench_live: they import it alone."""

import json
import statistics
import time
from collections.abc import Callable

WARM = 100


def times(act: Callable[[], None], turns: int) -> list[float]:
    """In ms, sorted."""
    took = []
    for turn in range(WARM + turns):
        began = time.perf_counter()
        act()
        if turn >= WARM:
            took.append((time.perf_counter() - began) * 1000)
    return sorted(took)


def median_and_p99(took: list[float]) -> tuple[float, float]:
    return statistics.median(took), took[len(took) * 99 // 100]


def tell(took: list[float]) -> None:
    """Print what bench_live reads."""
    median, p99 = median_and_p99(took)
    print(json.dumps({"block": median, "block_p99": p99}), flush=True)
