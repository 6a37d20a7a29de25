"""Real jobs end as a model says that knows nothing of agents. These are some seeds of `scripts/soak --endings`."""

from __future__ import annotations

from pathlib import Path

import pytest
from nursery import Nursery

from storm.ending_job import EndingJob
from storm.job import play

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.parametrize("seed", [1, 3])
def test_jobs_end_as_the_model_says(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    verdict = play(EndingJob, seed, tmp_path, nursery.begin)
    assert not verdict.complaints, f"{verdict}\n{verdict.story}"
    assert verdict.faults
