"""live_workers inside the in-process Wrapper, on real processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster import Node

Start = Callable[..., Node]

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_a_wrapper_begins_the_loop_again_and_its_blocks_are_in_the_new_world(start: Start, tmp_path: Path) -> None:
    flags = ("--worker_failure=replace", "--max_restarts=3")
    node: Node = start("a", "live_wrapped.py", str(tmp_path), nnodes="1", nproc=3, flags=flags)
    assert node.wait(100) == 0, node.output()
    assert node.output().count("returned 60") == 3
    # On the worker that raised, too: whether its own handler comes first is a matter of milliseconds.
    assert node.output().count("restarts after a fault of rank 1 of world") == 3
    assert "ValueError: a bad batch" in node.output()
