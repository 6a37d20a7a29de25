"""Whatever goes wrong between hosts for a while, no two worlds work at once, and one of all does when it is over.

These are seeds of `scripts/soak --hosts`, which has every trouble with every size.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from local_network import NEEDS, able
from nursery import Nursery

from storm.hosts import SIZES, TROUBLES, HostsJob
from storm.job import play

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(not able(), reason=f"needs {NEEDS}"),
]


@pytest.mark.parametrize(
    ("trouble", "size"),
    [
        ("resets_everywhere", "1:2"),
        ("refuses_new_connections", "1:3"),
        ("an_address_moves", "1:2"),
        ("the_founder_is_stopped", "2:3"),
    ],
)
def test_no_two_worlds_work_at_once(nursery: Nursery, tmp_path: Path, trouble: str, size: str) -> None:
    names = [each.__name__ for each in TROUBLES]
    seed = names.index(trouble) + len(names) * SIZES.index(size)
    verdict = play(HostsJob, seed, tmp_path, nursery.begin)
    assert not verdict.complaints, f"{verdict}\n{verdict.story}"
    assert verdict.faults == [trouble]
