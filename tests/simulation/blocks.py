"""Simulated workers that call live_workers: block after block, and a history of what they saw.

They draw from a sequence of their own, so what else happens to a seed is the same with and without them.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from simulation.cluster import Cluster, Node, Watcher
from simulation.workers import Process
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.live import name_of
from softrun.agent.protocol.model import Phase, Round
from softrun.runtime.calls import Call, Reply, Way
from softrun.testing import History, parse_history

RAISES = 0.01
"""The odds that a block raises."""
BLOCK_S = (0.02, 0.3)
MOST_EVENTS = 20_000
"""Of one history; later ones are not made, so that every seed can be judged."""


@dataclass
class Life:
    """One worker in one incarnation."""

    name: str
    inc: str
    calls: int = 0
    open: Call | None = None
    block: frozenset[str] | None = None  # who is in the block that it is in
    excluded: bool = False  # a record has gone on without it
    ended: bool = False


class Blocks(Watcher):
    """The calls of all workers of a cluster. `raises`: the odds that a block raises."""

    def __init__(self, cluster: Cluster, rng: random.Random, raises: float = RAISES) -> None:
        self.cluster = cluster
        self.rng, self.raises = rng, raises
        self.events: list[dict[str, Any]] = []
        self.worlds: dict[int, dict[str, str]] = {}  # the incarnation of each worker, by name
        self.lives: dict[int, Life] = {}
        cluster.blocks = self
        cluster.watchers.append(self)

    # --- what the cluster tells

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        """Who is not in the new record was declared dead, if it was not."""
        there = {
            name_of(m.node, w.local_rank): f"{m.incarnation}.{w.incarnation}" for m in after.members for w in m.workers
        }
        if after.phase is Phase.SEALED:
            self.worlds.setdefault(after.number, there)
        for life in self.lives.values():
            life.excluded |= there.get(life.name) != life.inc

    def works(self, process: Process, number: int) -> None:
        """A worker works in a world."""
        name = process.name
        inc = self.worlds.get(number, {}).get(name)
        if inc is None or len(self.events) > MOST_EVENTS:
            return
        life = self.lives.get(id(process))
        if life is not None and life.inc != inc:
            self._end(life)
            life = None
        if life is None:
            life = self.lives[id(process)] = Life(name, inc)
            self._write(life, "start", inc=inc)
        if life.open is None:
            self._call(process, life, Way.ENTRY, number)

    def replied(self, node: Node, local_rank: int, launch: int, number: int, reply: Reply) -> None:
        """An agent replies to a call."""
        process = node.processes[local_rank]
        if process.launch == launch:
            self.cluster.after(self.rng.uniform(0.0, 0.002), self._take, process, number, reply)

    def died(self, node: Node) -> None:
        for process in node.processes.values():
            self._died(process)

    def worker_died(self, process: Process, exitcode: int, because: str) -> None:
        self._died(process)

    def _died(self, process: Process) -> None:
        life = self.lives.pop(id(process), None)
        if life is not None:
            self._end(life)

    def history(self) -> History:
        """What all have seen."""
        for life in self.lives.values():
            if life.excluded:
                self._end(life)
        names = sorted({name for world in self.worlds.values() for name in world})
        return parse_history(json.dumps({"name": "simulated", "procs": names, "events": self.events}))

    # --- what the workers do

    def _call(self, process: Process, life: Life, way: Way, number: int, fault: str | None = None) -> None:
        life.calls += 1
        life.open = Call(life.calls, number, way, fault=fault, site="train.py:7")
        vote = {} if way is Way.ENTRY else {"vote": "ok" if fault is None else "raise"}
        # Newcomers may be in a call of the next world already, so each call asks about its own.
        self._write(life, "call", scope=sorted(self.worlds[number]), **vote)
        called = saw.Called(process.local_rank, process.launch, life.open)
        self.cluster.after(self.rng.uniform(0.0, 0.002), self.cluster.deliver, process.node, called)

    def _take(self, process: Process, number: int, reply: Reply) -> None:
        life = self.lives.get(id(process))
        if not process.alive or life is None or life.open is None or number != life.open.number:
            return
        if process.hung_since is not None:
            self.cluster.after(0.05, self._take, process, number, reply)
            return
        call, life.open = life.open, None
        if reply.over or reply.mistake:
            life.block = None
            failed = {"ok": False} if call.way is Way.EXIT and not reply.evicted else {}
            self._write(life, "error", **failed)
            if process.works_in(process.last.round) and process.status.worked == process.last.round > call.epoch:
                self.works(process, process.last.round)
            return
        block = frozenset(name for name, _ in reply.tags) if call.way is Way.ENTRY else life.block
        if block is None:
            raise AssertionError(f"{life.name} ends a block that it is not in")
        block -= set(reply.gone)
        incs = {name: self.worlds[call.epoch][name] for name in block}
        told = {"ok": reply.ok} if reply.ok is not None else {}
        self._write(life, "reply", live=sorted(block), incs=incs, round=call.epoch * 10**6 + reply.turn, **told)
        life.block = block if reply.ok is not False else None
        if reply.ok is False:
            self._call(process, life, Way.ENTRY, call.epoch)
        else:
            self.cluster.after(self.rng.uniform(*BLOCK_S), self._leave, process, life, call)

    def _leave(self, process: Process, life: Life, begun: Call) -> None:
        """Its block is at its end here, or was ended."""
        number = begun.epoch
        if not process.alive or self.lives.get(id(process)) is not life or life.calls != begun.number:
            return  # all have left its world between two blocks
        if process.hung_since is not None:
            self.cluster.after(0.05, self._leave, process, life, begun)
            return
        if not process.works_in(number) and not self._stays(process, number):
            self._call(process, life, Way.EXIT, number, fault="")
        elif self.rng.random() < self.raises:
            self._call(process, life, Way.EXIT, number, fault=f"ValueError: {life.name}")
        elif len(self.events) <= MOST_EVENTS:
            self._call(process, life, Way.EXIT, number)

    @staticmethod
    def _stays(process: Process, number: int) -> bool:
        """Whether it was told to leave its world later, after a step."""
        return process.last.leave_after is not None and process.last.round == number + 1

    def _end(self, life: Life) -> None:
        if not life.ended:
            life.ended = True
            self._write(life, "evicted" if life.excluded else "fail")

    def _write(self, life: Life, kind: str, **more: Any) -> None:
        self.events.append({"t": self.cluster.now, "p": life.name, "e": kind, **more})
