"""Rank assignments as the ranks of a job make them: each in a thread, with its own copy, over one store."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from softrun.runtime.inprocess.rank_assignment import RankAssignment, RankAssignmentCtx, RankDiscarded
from softrun.runtime.inprocess.state import State
from softrun.runtime.inprocess.store import IterationStore


@dataclass(frozen=True)
class Table:
    """The ranks before an assignment: some of `size` are lost, and some of the others have just joined."""

    size: int
    lost: frozenset[int] = frozenset()
    newcomers: frozenset[int] = frozenset()

    @property
    def living(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.lost]

    @property
    def survivors(self) -> list[int]:
        return [rank for rank in self.living if rank not in self.newcomers]


def table(size: int, lost: Iterable[int] = (), newcomers: Iterable[int] = ()) -> Table:
    return Table(size, frozenset(lost), frozenset(newcomers))


@dataclass(frozen=True)
class Outcome:
    """What came of each rank, by its rank before."""

    states: dict[int, State]
    discarded: list[int]

    @property
    def order(self) -> list[int]:
        """Who has rank 0, 1, 2 and so on; all agree on how many there are."""
        by_rank = {state.rank: before for before, state in self.states.items()}
        assert sorted(by_rank) == list(range(len(self.states)))  # type: ignore[type-var]
        assert {state.world_size for state in self.states.values()} == {len(self.states)}
        return [by_rank[rank] for rank in range(len(self.states))]

    @property
    def active(self) -> list[int]:
        """Who has active rank 0, 1, 2 and so on; all agree on how many there are."""
        active = {state.active_rank: before for before, state in self.states.items() if state.active_rank is not None}
        assert {state.active_world_size for state in self.states.values()} == {len(active)}
        assert all(state.is_active == (state.active_rank is not None) for state in self.states.values())
        return [active[rank] for rank in range(len(active))]


class Ranks:
    """The processes of a job, each with its own copy of the assignment, through several iterations."""

    def __init__(self, assignment: RankAssignment) -> None:
        self._assignment = assignment
        self._copies: dict[int, RankAssignment] = {}
        self._told: dict[int, RankAssignment] = {}
        self._initial: dict[int, int] = {}
        self._iteration = 0

    def assign(self, before: Table) -> Outcome:
        """One iteration. Ranks have their numbers from the iteration before; a newcomer begins with a fresh copy."""
        states, discarded = {}, []
        for rank, outcome in self.attempt(before).items():
            if isinstance(outcome, RankDiscarded):
                discarded.append(rank)
            elif isinstance(outcome, Exception):
                raise outcome
            else:
                states[rank] = outcome
        self._copies = {rank: self._told[before] for before, rank in _numbers(states)}
        self._initial = {rank: states[before].initial_rank or 0 for before, rank in _numbers(states)}
        return Outcome(states, discarded)

    def attempt(self, before: Table) -> dict[int, State | Exception]:
        """What an iteration comes to on each rank."""
        self._iteration += 1
        store = Waiting(dist.HashStore())
        self._told = {
            rank: self._copies[rank]
            if rank in self._copies and rank not in before.newcomers
            else copy.deepcopy(self._assignment)
            for rank in before.living
        }

        def one(rank: int) -> State | Exception:
            ctx = RankAssignmentCtx(
                self._state(rank, before),
                IterationStore(store.do, f"{self._iteration}/"),
                set(before.lost),
                set(before.newcomers),
            )
            try:
                returned: RankAssignmentCtx | None = self._told[rank](ctx)
            except Exception as error:
                return error
            return (ctx if returned is None else returned).state

        with ThreadPoolExecutor(max(1, len(self._told))) as threads:
            return dict(zip(self._told, threads.map(one, self._told), strict=True))

    def _state(self, rank: int, before: Table) -> State:
        initial = rank if rank in before.newcomers else self._initial.get(rank, rank)
        return State(rank, before.size, initial_rank=initial)


def assign(assignment: RankAssignment, before: Table) -> Outcome:
    return Ranks(assignment).assign(before)


def _numbers(states: dict[int, State]) -> list[tuple[int, int]]:
    """The rank of each process before, and after."""
    return [(before, state.rank) for before, state in states.items() if state.rank is not None]


@dataclass
class Waiting:
    """Calls with a store that end in time."""

    store: Any

    def do(self, act: Callable[[Any], Any], timeout: timedelta | None) -> Any:
        if timeout is None:
            return act(self.store)
        outcome: list[Any] = []
        thread = threading.Thread(target=lambda: outcome.append(act(self.store)), daemon=True)
        thread.start()
        thread.join(timeout.total_seconds())
        if thread.is_alive():
            raise TimeoutError(f"not all ranks arrived within {timeout.total_seconds():g} s")
        return outcome[0]
