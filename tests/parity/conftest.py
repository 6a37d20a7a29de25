"""torchrun is the specification: the same command lines, scripts and surroundings for both."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from launchers import Launchers


@pytest.fixture(scope="session")
def launchers() -> Iterator[Launchers]:
    launchers = Launchers()
    yield launchers
    launchers.close()
