"""Random lives of a few agents' calls: every order, loss and death that the protocol must bear, and a history of it.

Here is what the rest of an agent would do, in the plainest way: who lives is decided by a draw, and the record changes
in one place. So a thousand storms take seconds, and each of them is judged.

    call      a worker calls, or raises in its block
    deliver   a message arrives, maybe twice, maybe after later ones of other links
    link      a link breaks, with all that is on it
    die       a worker dies, and is started again with the next world; or its work is done
    crash     an agent dies with its workers
    end       the world ends: those that are heard promise one after the other, then learn of the record so
"""

from __future__ import annotations

import json
import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from values import STORE, member, sealed

from softrun.agent.live.live_calls import LiveCalls
from softrun.agent.protocol.effects import Answered, Effect, Say
from softrun.agent.protocol.live import Calls, Verdict, name_of
from softrun.agent.protocol.model import Member, NodeIntent, Report, Round, Worker
from softrun.agent.rendezvous import promises
from softrun.agent.rendezvous.transitions import seal, taking_in
from softrun.runtime.calls import Call, Reply, Way
from softrun.testing import History, parse_history

RAISES = 0.05
NODES = "abcde"


@dataclass
class Life:
    """One worker in one incarnation. A worker whose node was left behind comes back as another one."""

    name: str
    inc: str
    launch: int
    calls: int = 0
    open: Call | None = None
    block: frozenset[str] | None = None
    epoch: int = 0  # in which the block began
    excluded: bool = False
    ended: bool = False


@dataclass
class Agent:
    """One node."""

    name: str
    size: int
    calls: LiveCalls
    incarnation: int = 1
    lives: dict[int, Life] = field(default_factory=dict)
    launches: dict[int, int] = field(default_factory=dict)
    world: Round | None = None  # the newest record that it knows
    promised: int = 0
    done: set[int] = field(default_factory=set)  # the workers whose work is done: they never come back

    def member(self) -> Member:
        """Its entry in the next world: with all its workers, the dead ones started again."""
        workers = tuple(Worker(rank, self.launches[rank]) for rank in range(self.size) if rank not in self.done)
        return replace(member(self.name), incarnation=self.incarnation, workers=workers)


class Storm:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.events: list[dict[str, Any]] = []
        self.time = 0
        self.slow = self.rng.choice((*NODES, ""))  # what is said to this node comes late
        self.unheard = self.rng.choice((0.1, 0.6))  # the odds that a world ends without its coordinator
        self.incarnations = 2  # the next one, of any node
        self.ways: dict[tuple[str, str], deque[Calls | Verdict]] = {}
        names = NODES[: self.rng.randint(1, 4)]
        self.agents = {name: self._agent(name) for name in names}
        self.owing: list[str] = []
        self.heard: list[str] = []
        self.late: list[str] = []  # who has yet to learn of the newest record
        self.world = sealed(*(agent.member() for agent in self.agents.values()))
        self._recorded()
        while self.late:
            self._learn()

    def run(self) -> History:
        """Let it happen, and return what the workers saw."""
        ways = [self._call] * 12 + [self._deliver] * 18 + [self._end] * 4 + [self._link, self._die, self._crash]
        for _ in range(self.rng.randint(100, 600)):
            self.rng.choice(ways)()
        for agent in self.agents.values():
            for life in agent.lives.values():
                if life.excluded:
                    self._over(life)
        names = sorted({event["p"] for event in self.events})
        return parse_history(json.dumps({"name": "storm", "procs": names, "events": self.events}))

    def _agent(self, name: str) -> Agent:
        size = self.rng.randint(1, 2)
        return Agent(name, size, LiveCalls(name), launches=dict.fromkeys(range(size), 1))

    # --- workers

    def _call(self) -> None:
        free = [
            (agent, rank, life)
            for agent in self.agents.values()
            for rank, life in agent.lives.items()
            if life.open is None and not life.ended and agent.world is not None and agent.name in agent.world.by_node
        ]
        if not free:
            return
        agent, rank, life = self.rng.choice(free)
        if agent.world is None:
            raise AssertionError("a worker in no world")
        life.calls += 1
        way, fault = (Way.EXIT, None) if life.block is not None else (Way.ENTRY, None)
        number = life.epoch if way is Way.EXIT else agent.world.number
        if way is Way.EXIT and self.rng.random() < RAISES:
            fault = self.rng.choice(("", "ValueError"))
        life.open = Call(life.calls, number, way, fault=fault)
        vote = {} if way is Way.ENTRY else {"vote": "ok" if fault is None else "raise"}
        self._write(life, "call", **vote)
        self._do(agent, agent.calls.called(rank, life.launch, life.open, 0.0))

    def take(self, life: Life, number: int, reply: Reply) -> None:
        """A worker takes a reply."""
        if life.open is None or life.open.number != number:
            raise AssertionError(f"{life.name} was answered what it did not ask")
        call, life.open = life.open, None
        if reply.over or reply.mistake:
            life.block = None
            # Whoever is left behind knows nothing of how the block has ended for the others.
            failed = {"ok": False} if call.way is Way.EXIT and not reply.evicted else {}
            self._write(life, "error", **failed)
            return
        block = frozenset(name for name, _ in reply.tags) if call.way is Way.ENTRY else life.block
        if block is None:
            raise AssertionError(f"{life.name} ends a block that it is not in")
        block -= set(reply.gone)
        told = {} if reply.ok is None else {"ok": reply.ok}
        self._write(life, "reply", live=sorted(block), round=call.epoch * 10**6 + reply.turn, **told)
        life.block, life.epoch = (block if reply.ok is not False else None), call.epoch

    def _die(self) -> None:
        agent = self.rng.choice([*self.agents.values()])
        rank = self.rng.randrange(agent.size)
        life = agent.lives.get(rank)
        if life is None or life.ended:
            return
        self._over(life)
        agent.calls.gone(rank, life.launch)
        agent.launches[rank] += 1
        if self.rng.random() < 0.2:
            agent.done.add(rank)
            self._do(agent, agent.calls.departed(rank))

    def _over(self, life: Life) -> None:
        if not life.ended:
            life.ended, life.open = True, None
            self._write(life, "evicted" if life.excluded else "fail")

    # --- messages

    def _do(self, agent: Agent, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Say(str() as to, (Calls() | Verdict()) as said):
                    self.ways.setdefault((agent.name, to), deque()).append(said)
                case Answered(callers, reply):
                    for rank, launch, number in callers:
                        life = agent.lives[rank]
                        if life.launch == launch and not life.ended:
                            self.take(life, number, reply)

    def _deliver(self) -> None:
        due = [way for way, said in self.ways.items() if said and way[1] in self.agents]
        if not due:
            return
        source, to = way = self.rng.choice(due)
        if to == self.slow and self.rng.random() < 0.8:
            return
        said = self.ways[way][0] if self.rng.random() < 0.1 else self.ways[way].popleft()
        self._do(self.agents[to], self.agents[to].calls.hear(source, said, 0.0))

    def _link(self) -> None:
        if len(self.agents) > 1:
            one, other = self.rng.sample(sorted(self.agents), 2)
            for way in ((one, other), (other, one)):
                self.ways.pop(way, None)
            for source, to in ((one, other), (other, one)):
                self._do(self.agents[source], self.agents[source].calls.link_up(to))

    # --- nodes, and worlds

    def _crash(self) -> None:
        if len(self.agents) < 2 or self.rng.random() < 0.6:
            return
        name = self.rng.choice(sorted(self.agents))
        agent = self.agents.pop(name)
        for life in agent.lives.values():
            self._over(life)
        self.ways = {way: said for way, said in self.ways.items() if way[0] != name or self.rng.random() < 0.5}
        self.late = [node for node in self.late if node != name]
        self.owing = []  # whoever was about to make a record begins again without it

    def _end(self) -> None:
        """One step on the way to the next world."""
        if self.late:
            self._learn()
        elif self.owing:
            self._promise(self.owing.pop())
        elif self.rng.random() < 0.15:
            here = [m.node for m in self.world.members if m.node in self.agents]
            odds = [self.unheard, *[0.1] * len(here)]
            self.heard = [node for node, away in zip(here, odds, strict=False) if self.rng.random() >= away]
            self.heard = self.heard or here[-1:]
            reports = {node: self._report(self.agents[node]) for node in self.heard}
            for name in self.agents.keys() - set(self.heard):
                self._do(self.agents[name], self.agents[name].calls.be_sure(0.0, 0.0))
            if self.heard:
                dead = {m.node for m in self.world.members} - set(self.heard)
                self.owing = sorted(promises.owing(self.world, reports, dead, set(), self.heard[0]))
                self.rng.shuffle(self.owing)
            if not self.owing:
                self._record()

    def _promise(self, name: str) -> None:
        agent = self.agents[name]
        agent.calls.promise(self.world.number)
        agent.promised = self.world.version
        if not self.owing:
            self._record()

    def _report(self, agent: Agent) -> Report:
        number = self.world.number
        return Report(
            self.world.by_node[agent.name],
            NodeIntent.READY,
            calls=number,
            decides=number if agent.calls.coordinates(number) else 0,
            promised=agent.promised,
            verdicts=agent.calls.delivered() if agent.promised == self.world.version else (),
        )

    def _record(self) -> None:
        """The world ends: those that were heard go on, and others may come, also those that were left behind before."""
        stay = [self.agents[node].member() for node in self.heard]
        decided = promises.verdicts(self.world, {node: self._report(self.agents[node]) for node in self.heard})
        for name in NODES:
            if name not in self.heard and self.rng.random() < 0.2:
                agent = self.agents.setdefault(name, self._agent(name))
                agent.incarnation = self.incarnations
                self.incarnations += 1
                stay.append(agent.member())
        stay = [m for m in stay if m.workers]
        if stay:
            self.world = taking_in(seal(self.world, stay, STORE, ()), decided)
            self._recorded()

    def _recorded(self) -> None:
        there = {
            name_of(m.node, w.local_rank): f"{m.incarnation}.{w.incarnation}"
            for m in self.world.members
            for w in m.workers
        }
        for agent in self.agents.values():
            for life in agent.lives.values():
                life.excluded |= there.get(life.name) != life.inc
        self.late = sorted(self.agents)
        self.rng.shuffle(self.late)

    def _learn(self) -> None:
        """A node learns of the newest record, and starts the workers that it lacks."""
        agent = self.agents[self.late.pop()]
        placed = self.world.by_node.get(agent.name)
        agent.world = self.world
        self._do(agent, agent.calls.adopt(self.world, placed=placed is not None))
        if placed is None:
            return
        self._do(agent, agent.calls.be_sure(1.0, 0.0))
        for worker in placed.workers:
            rank, inc = worker.local_rank, f"{placed.incarnation}.{worker.incarnation}"
            life = agent.lives.get(rank)
            if life is not None and life.inc == inc and not life.ended:
                continue
            if life is not None:
                self._over(life)
            if worker.incarnation == agent.launches[rank]:
                agent.lives[rank] = Life(name_of(agent.name, rank), inc, worker.incarnation)
                self._write(agent.lives[rank], "start", inc=inc)

    def _write(self, life: Life, kind: str, **more: Any) -> None:
        self.time += 1
        self.events.append({"t": self.time, "p": life.name, "e": kind, **more})
