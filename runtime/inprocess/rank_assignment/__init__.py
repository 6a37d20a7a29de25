"""Callbacks that give each rank of an iteration its number, and say which are active and which leave.

A `RankAssignment` is called on every rank with a `RankAssignmentCtx`. A plain function, or a `SeatAssignment`, is
called on one rank for all with the table of all `Seat`s; see `settle`.
"""

from __future__ import annotations

from softrun.runtime.inprocess.rank_assignment.context import (
    RankAssignment,
    RankAssignmentCtx,
    RankDiscarded,
    RankFilter,
)
from softrun.runtime.inprocess.rank_assignment.filters import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    MaxActiveWorldSize,
)
from softrun.runtime.inprocess.rank_assignment.grouping import FilterCountGroupedByKey
from softrun.runtime.inprocess.rank_assignment.numbering import FillGaps, ShiftRanks
from softrun.runtime.inprocess.rank_assignment.seats import Seat, SeatAssignment, settle
from softrun.runtime.inprocess.rank_assignment.tree import Layer, LayerFlag, Tree

__all__ = [
    "ActivateAllRanks",
    "ActiveWorldSizeDivisibleBy",
    "FillGaps",
    "FilterCountGroupedByKey",
    "Layer",
    "LayerFlag",
    "MaxActiveWorldSize",
    "RankAssignment",
    "RankAssignmentCtx",
    "RankDiscarded",
    "RankFilter",
    "Seat",
    "SeatAssignment",
    "ShiftRanks",
    "Tree",
    "settle",
]
