"""States of a rank, as callbacks are given them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from softrun.runtime.inprocess import State

STATE = State(
    rank=1,
    world_size=4,
    active_rank=1,
    active_world_size=3,
    initial_rank=1,
    initial_world_size=4,
    iteration=0,
    round=7,
)


def at(**changes: Any) -> State:
    return replace(STATE, **changes)
