"""Under what conditions a simulated job runs: how long things take, what may go wrong, and how its workers behave."""

from __future__ import annotations

from dataclasses import dataclass

from softrun.runtime.events import ProgressLimits

Range = tuple[float, float]


@dataclass(frozen=True)
class Timing:
    """How long things take, in seconds: drawn evenly between two bounds."""

    store: Range = (0.001, 0.001)
    link: Range = (0.0005, 0.0005)
    connect: Range = (0.001, 0.001)
    notice: Range = (0.01, 0.01)  # a process has ended → the other ends of its links know
    give_up: Range = (2.0, 2.0)  # a connection attempt into silence
    open_store: Range = (0.002, 0.002)
    worker_ends: Range = (0.01, 0.01)  # after a signal
    worker_seen: Range = (0.001, 0.001)  # a worker has ended → its agent knows
    worker_ready: Range = (0.05, 0.05)  # a worker was started outside → it asks for a world
    worker_works: Range = (0.02, 0.02)  # a worker has come to its world → it has built its groups, and works
    peer_feels: Range = (0.02, 0.02)  # a worker has ended → the others of its world feel it


@dataclass
class Weather:
    """The odds of what may befall any single operation; calm at first."""

    lose_request: float = 0.0
    lose_reply: float = 0.0
    slow: float = 0.0
    slow_s: Range = (0.0, 0.0)


@dataclass
class Habits:
    """How the workers of this job behave."""

    coupled: bool = False  # they feel the death of others of their world
    fail_when_coupled: float = 0.0  # the odds that one then fails, rather than report a broken world
    dies_building: float = 0.0  # the odds that one dies while it builds the groups of a world
    exits_building: float = 0.0  # and that it exits 0 then
    in_calls: bool = False  # peers wait for each at the end, so one that exits 0 before leaves a gap
    functions: bool = False  # they are functions: a process whose function has returned lives until it is released
    ignore_sigterm: float = 0.0
    exit_zero_on_sigterm: float = 0.0
    slow_to_leave: float = 0.0
    slow_to_get_out: float = 0.0  # of what they wait in
    limits: ProgressLimits | None = None  # how they are watched
    step_s: Range | None = None  # how long their steps take; None: they count none
    heeds: bool = False  # told to leave for good, they stop after an agreed step, and save
    save_s: Range = (0.01, 0.3)  # how long that takes
