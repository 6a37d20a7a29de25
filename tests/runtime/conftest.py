from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import Nursery

sys.path.append(str(Path(__file__).parent))

from wrapped_ranks import Job, job

from fake_agent import FakeAgent


@pytest.fixture
def agent(tmp_path: Path, nursery: Nursery) -> Iterator[FakeAgent]:
    agent = FakeAgent(tmp_path, nursery.begin)
    yield agent
    agent.end()


@pytest.fixture(name="job")
def a_job(tmp_path: Path) -> Iterator[Job]:
    with job(tmp_path) as made:
        yield made
