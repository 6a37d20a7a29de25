"""Each sample of an epoch is trained on by one committed step, whatever joins, leaves and dies meanwhile.

This is one seed of `scripts/soak --ledger`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from nursery import Nursery

from storm.job import play
from storm.ledger import LedgerJob

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.parametrize("seed", [20])
def test_no_sample_is_lost_or_repeated(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    verdict = play(LedgerJob, seed, tmp_path, nursery.begin)
    assert not verdict.complaints, f"{verdict}\n{verdict.story}"
    assert len(verdict.faults) == 10
