"""The steps of the simulated workers, where they count them.

The ranks of a world go in step: nobody completes one that not all others take part in. One that is held begins no more;
one that was told after which step to leave leaves after that one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from softrun.runtime.events import WorkerState

if TYPE_CHECKING:
    from simulation.cluster import Cluster
    from simulation.workers import Process


class _Place(NamedTuple):
    store: tuple[str, int]
    world_size: int


class Steps:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._entered: dict[int, list[Process]] = defaultdict(list)
        self._done: dict[tuple[int, Process], int] = {}  # by world
        self._begins: dict[int, int] = {}

    def enter(self, process: Process) -> None:
        """It has obeyed what named a world."""
        number = process.last.round
        if self._cluster.habits.step_s is None or process.at == number:
            return
        process.at, process.step = number, None
        if number not in self._begins:
            self._begins[number] = max(self._done.values(), default=0)
        self._entered[number].append(process)
        self.look(process)
        self._later(process)

    def look(self, process: Process) -> None:
        """It looks at what it was told last, and begins the next step if it may. What it has begun it also ends."""
        if not process.at or process.node.holds(self._cluster.now):
            return
        stays = process.last.round == process.at and process.last.state is WorkerState.HEALTHY
        bound = process.last.stop_after if stays else process.last.leave_after
        if stays and process.last.preemption is not None:
            bound = process.last.preemption.after
        if bound is None or process.step is None or process.step < bound:
            process.begun = self._last(process, process.at) + 1

    @staticmethod
    def stays(process: Process) -> bool:
        """Is it told, but for now goes on in the world that it is in?"""
        if not process.at:
            return False
        if process.last.round == process.at and process.last.state is WorkerState.HEALTHY:
            return True
        leave_after = process.last.leave_after
        return leave_after is not None and (process.step is None or process.step < leave_after)

    def _later(self, process: Process) -> None:
        assert self._cluster.habits.step_s is not None
        self._cluster.after(self._cluster.draw(self._cluster.habits.step_s), self._complete, process, process.at)

    def _complete(self, process: Process, number: int) -> None:
        if not process.alive or process.at != number:
            return
        if self._may_complete(process, number):
            process.step = self._last(process, number) + 1
            if (number, process) not in self._done:
                self._cluster.workers.say(process, counts=number)
            self._done[number, process] = process.step
            self.look(process)
            self._cluster.workers.save_if_told(process)
            if process.last.round > number or process.last.state is WorkerState.PAUSED:
                self._cluster.workers.obey(process)
        self._later(process)

    def _may_complete(self, process: Process, number: int) -> bool:
        place = self._place(process, number)
        world = [peer for peer in self._entered[number] if self._place(peer, number).store == place.store]
        size = place.world_size
        if len(world) < size:
            return False
        done = self._last(process, number)
        return all(self._last(peer, number) > done or self._takes_part(peer, number, done + 1) for peer in world)

    @staticmethod
    def _place(process: Process, number: int) -> _Place:
        """There; another job that became part of this one may have had a world of that number, too."""
        info = next(tell.info for tell in process.tells if tell.round == number and tell.stop_after is None)
        return _Place((info.master_addr, info.master_port), info.world_size)

    def _takes_part(self, process: Process, number: int, step: int) -> bool:
        there = process.alive and process.at == number and not process.stalled and not process.leaving
        return there and process.begun >= step

    def _last(self, process: Process, number: int) -> int:
        """The last step that it has completed; who has come to a world takes the step from the others."""
        if (number, process) in self._done:
            return self._done[number, process]
        return self._begins[number]
