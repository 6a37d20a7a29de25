"""Jobs of one node that a program launches."""

from __future__ import annotations

from softrun import LaunchConfig


def one_node(**changes: object) -> LaunchConfig:
    """Two workers that are not restarted, but for `changes` of the fields."""
    fields: dict[str, object] = {
        "min_nodes": 1,
        "max_nodes": 1,
        "nproc_per_node": 2,
        "run_id": "program",
        "rdzv_endpoint": "localhost:0",
        "max_restarts": 0,
    }
    return LaunchConfig(**(fields | changes))  # type: ignore[arg-type]
