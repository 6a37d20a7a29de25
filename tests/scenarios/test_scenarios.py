"""Every scenario file, played and compared line by line.

`SOFTRUN_REWRITE=1 pytest tests/scenarios` writes the traces anew. Commit only a rewrite that you understand: read the
difference against the paragraph of the RFC that the file quotes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scenarios.player import Player, read, write

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    blocks = read(path.read_text())
    traces = list(Player().play(blocks))
    for block, trace in zip(blocks, traces, strict=True):
        if not os.environ.get("SOFTRUN_REWRITE"):
            assert trace == block.trace, f"after {block.directives}"
        block.trace = trace
    if os.environ.get("SOFTRUN_REWRITE"):
        path.write_text(write(blocks))


def test_reading_and_writing_a_file_changes_nothing() -> None:
    for path in FILES:
        assert write(read(path.read_text())) == path.read_text()


def test_there_is_a_scenario_for_each_event_of_the_rfc() -> None:
    names = {path.stem for path in FILES}
    assert {"scale_up", "scale_down", "worker_failure_no_replace", "worker_failure_replace", "below_minimum"} <= names
