"""torchrun is the specification: the same command lines, scripts and surroundings for both."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.torch_version import TorchVersion

sys.path.append(str(Path(__file__).parent))

from launchers import Launchers

#: Where the torchrun before that of torch 2.13 has another default, or lacks a flag or an argument.
OLDER_DIFFER = (
    "test_the_same_as_torchrun[shutdown_timeout]",
    "test_the_same_as_torchrun[bad_timeout]",
    "test_they_accept_and_refuse_alike",
    "test_the_events_are_torchs",
    "test_a_program_works_by_changing_the_import",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    older = TorchVersion(torch.__version__) < "2.13"
    for item in items:
        if older and item.name.startswith(OLDER_DIFFER):
            item.add_marker(pytest.mark.skip(reason="softrun stands in for the torchrun of torch 2.13"))


@pytest.fixture(scope="session")
def launchers() -> Iterator[Launchers]:
    launchers = Launchers()
    yield launchers
    launchers.close()
