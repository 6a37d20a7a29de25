"""Every order in which things can happen to three agents, within bounds: what the simulation draws, this exhausts.

The replicas and the leases are the real ones. What an engine does around them is written here in its shortest form: an
agent takes a member for dead that it has not heard for the tolerance, unless it owes it more; the first member that
lives leads, one that has finished if no other does; the leader proposes a record without the dead and with whoever has
come back, in which all work, and that names the witness if it hears it; if all that it misses have finished, it retires
them instead; an agent whose proposal cannot be decided pauses its workers; one that was left behind begins a job of its
own once all the others are known to have ended. A job of two may have a witness for its third.

    deliver    the next message of one link; the turn in which it arrives may also be that in which the agent proposes,
               from the record that it had before. What does not decide anything is delivered as soon as it is the next
    tick       a beat's interval passes, and agents in touch beat; leaders propose what there is to propose
    isolate    an agent hears nobody and is heard by nobody; what is under way to and from it is lost
    heal       it is back, and says hello
    stop       an agent stands still; what is sent to it waits
    wake       it goes on, and takes nobody for dead that it has not heard meanwhile
    end        an agent is killed, and its last words are on their way

Messages wait for as long as there are ticks. Beats are heard at once, unless something is under way on their link: that
they do not overtake.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from values import told_to

from simulation.explored_agents import WITNESS, Agent, Third, message_key, record_key
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.model import (
    Accept,
    Accepted,
    Beat,
    Decided,
    Message,
    Prepare,
    Promise,
    Record,
    Refused,
    Round,
)

MOST_AT_ONCE = 100
"""Messages that decide nothing and follow one another at once."""

Action = tuple[str, ...]


@dataclass(frozen=True)
class Bounds:
    """How much may happen."""

    ticks: int = 5
    absences: int = 2
    """How often one of them is isolated or stopped."""
    ends: int = 0
    kinds: tuple[str, ...] = ("isolate", "stop")
    versions: int = 2
    """How many records may follow the first."""
    slow: tuple[type, ...] = (Prepare, Promise, Accept, Accepted, Refused, Decided)
    """What may be under way for any time; the rest is delivered as soon as it is the next."""


class BrokenError(Exception):
    """A promise is broken, and these actions lead there."""

    def __init__(self, what: str, path: tuple[Action, ...]) -> None:
        super().__init__(f"{what} after\n" + "\n".join(f"    {' '.join(action)}" for action in path))


class Said(NamedTuple):
    """A message under way."""

    key: int
    message: Message

    @staticmethod
    def of(message: Message) -> Said:
        return Said(hash(message_key(message)), message)


Turn = tuple[Agent, list[do.Effect]]


@dataclass
class World:
    """The three, and what is under way between them."""

    agents: dict[str, Agent]
    links: dict[tuple[str, str], tuple[Said, ...]] = field(default_factory=dict)
    isolated: str = ""
    stopped: str = ""
    ticks: int = 0
    absences: int = 0
    ends: int = 0
    is_endless: bool = False
    """Whether the agents answer each other without end."""
    decided: dict[tuple[str, int], Round] = field(default_factory=dict)
    turns: dict[Hashable, Turn] = field(default_factory=dict)
    """What has come of a message that an agent got: others in the same state do the same."""

    @property
    def key(self) -> int:
        """What it is, for comparing: what follows from two worlds with the same key is the same."""
        links = frozenset((link, tuple(said.key for said in under_way)) for link, under_way in self.links.items())
        counts = (self.isolated, self.stopped, self.ticks, self.absences, self.ends)
        return hash((counts, links, tuple(agent.key for agent in self.agents.values()), len(self.decided)))

    def actions(self, bounds: Bounds) -> Iterator[Action]:
        for (sender, receiver), said in self.links.items():
            if said and receiver != self.stopped:
                yield ("deliver", sender, receiver)
                wish = self.agents[receiver].wish
                if wish is not None and self._is_allowed(wish, bounds):
                    yield ("deliver", sender, receiver, "and", "propose")
        if self.ticks < bounds.ticks:
            yield ("tick",)
        if self.isolated:
            yield ("heal",)
        elif self.stopped:
            yield ("wake",)
        elif self.absences < bounds.absences:
            living = [node for node, agent in self.agents.items() if agent.alive]
            yield from ((what, node) for node in living for what in bounds.kinds)
        if self.ends < bounds.ends:
            yield from (("end", node) for node, agent in self.agents.items() if agent.alive)

    def _is_allowed(self, wish: Round, bounds: Bounds) -> bool:
        return wish.version <= FIRST_VERSION + bounds.versions

    def after(self, action: Action, bounds: Bounds) -> World:
        """The world after this action."""
        world = replace(self, agents=dict(self.agents), links=dict(self.links), decided=dict(self.decided))
        match action:
            case ("deliver", sender, receiver, *also):
                world._deliver(sender, receiver, propose=bool(also))
            case ("tick",):
                world._tick(bounds)
            case ("isolate", node):
                world.isolated, world.absences = node, world.absences + 1
                world.links = {link: said for link, said in world.links.items() if node not in link}
            case ("heal",):
                world._heal()
            case ("stop", node):
                world.stopped, world.absences = node, world.absences + 1
            case ("wake",):
                world._wake()
            case ("end", node):
                world._end(node)
        world._deliver_at_once(bounds)
        return world

    def _deliver_at_once(self, bounds: Bounds) -> None:
        for _ in range(MOST_AT_ONCE):
            link = next((link for link in self.links if self._is_at_once(*link, bounds)), None)
            if link is None:
                return
            self._deliver(*link, propose=False)
        self.is_endless = True

    def _is_at_once(self, sender: str, receiver: str, bounds: Bounds) -> bool:
        message = self.links[sender, receiver][0].message
        if isinstance(message, bounds.slow) or receiver == self.stopped:
            return False
        return not isinstance(message, Record) or self.agents[receiver].wish is None  # else it may propose as well

    def _deliver(self, sender: str, receiver: str, *, propose: bool) -> None:
        said, *rest = self.links[sender, receiver]
        self.links[sender, receiver] = tuple(rest)
        if not rest:
            del self.links[sender, receiver]
        before = self.agents[receiver]
        turn = (before.key, receiver, sender, said.key, propose)
        if turn not in self.turns:
            agent = before.copy()
            self.turns[turn] = agent, agent.hear(sender, said.message, before.wish if propose else None)
        self.agents[receiver], effects = self.turns[turn]
        self._carry_out(self.agents[receiver], effects)

    def _tick(self, bounds: Bounds) -> None:
        self.ticks += 1
        self.agents = {node: agent.copy() for node, agent in self.agents.items()}
        for agent in self.agents.values():
            agent.now = float(self.ticks)
        for _ in range(2):  # so that all have what they are granted for this very beat
            for agent in self.agents.values():
                for other in self.agents.values():
                    if self._are_in_touch(agent, other) and (agent.leader == other.node or other.leader == agent.node):
                        self._beat(agent, other)
                if agent.leads and other.node == WITNESS and self._are_in_touch(agent, other):
                    agent.heard_at[WITNESS] = agent.now
        for agent in self.agents.values():
            if agent.alive and agent.node != self.stopped:
                self._carry_out(agent, agent.follow())
                wish = agent.wish
                if wish is not None and self._is_allowed(wish, bounds):
                    before = agent.record
                    self._carry_out(agent, [*agent.propose(wish), *agent._go_on(before)])

    def _beat(self, agent: Agent, to: Agent) -> None:
        beat, link = agent.beat(to.node), (agent.node, to.node)
        under_way = self.links.get(link, ())
        if not under_way:
            to.hear_beat(agent.node, beat)
        elif isinstance(under_way[-1].message, Beat):  # a younger one says all that an older one has said
            self.links[link] = (*under_way[:-1], Said.of(beat))
        else:
            self.links[link] = (*under_way, Said.of(beat))

    def _heal(self) -> None:
        back, self.isolated = self.isolated, ""
        self.agents[back] = self.agents[back].copy()
        for node, agent in self.agents.items():
            if node != back and agent.alive and self.agents[back].alive:
                self._say(back, node, self.agents[back]._hello())
                self._say(node, back, agent._hello())

    def _wake(self) -> None:
        woken, self.stopped = self.stopped, ""
        agent = self.agents[woken] = self.agents[woken].copy()
        agent.heard_at = dict.fromkeys(agent.heard_at, agent.now)

    def _end(self, node: str) -> None:
        self.ends += 1
        agent = self.agents[node] = self.agents[node].copy()
        agent.alive = False
        for other in self.agents:
            self.links.pop((other, node), None)
            if other != node:
                dead = agent.replica
                self._say(node, other, told_to(self.agents[other].record, dead.last_words, dead.last_words_in_full))

    def _are_in_touch(self, one: Agent, other: Agent) -> bool:
        apart = {self.isolated, self.stopped} & {one.node, other.node}
        return one is not other and one.alive and other.alive and not apart

    def _carry_out(self, agent: Agent, effects: list[do.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, do.Say):
                to = [effect.node] if effect.node is not None else [node for node in self.agents if node != agent.node]
                for node in to:
                    self._say(agent.node, node, effect.message)
        self.decided.setdefault((agent.record.lineage, agent.record.version), agent.record)

    def _say(self, sender: str, receiver: str, message: Message) -> None:
        if self.isolated not in (sender, receiver) and self.agents[receiver].alive:
            self.links[sender, receiver] = (*self.links.get((sender, receiver), ()), Said.of(message))

    def fault(self) -> str:
        """Which promise is broken; "": none."""
        if self.is_endless:
            return "two agents answer each other without end"
        for agent in self.agents.values():
            record = self.decided.get((agent.record.lineage, agent.record.version))
            if record is not None and record != agent.record:
                return f"version {record.version} of {record.lineage} is two records"
        working = [agent for agent in self.agents.values() if agent.works]
        for one in working:
            for other in working:
                is_newer = one.record.lineage == other.record.lineage and one.record.version > other.record.version
                if one.node not in other.record.by_node and not is_newer:  # who joins may begin before all others know
                    return (
                        f"{other.node} works in {record_key(other.record)} and {one.node} in {record_key(one.record)}"
                    )
        return ""


FIRST_VERSION = 2


def explore(first: Round, bounds: Bounds, most: float = inf, tell: Callable[[int], None] = lambda _: None) -> int:
    """Look at every world that can follow, the nearest first. Returns how many there are; no more than `most`.

    Raises BrokenError with a shortest way to where a promise is broken.
    """
    begin = World({node: Agent(node, first) for node in first.by_node})
    if first.witness:
        begin.agents[first.witness] = Third(first.witness, first)
    begin.decided[first.lineage, first.version] = first
    seen: dict[int, tuple[int, Action] | None] = {begin.key: None}
    layer = [begin]
    while layer and len(seen) < most:
        following = []
        for world in layer:
            before = world.key
            for action in world.actions(bounds):
                after = world.after(action, bounds)
                key = after.key
                if key in seen:
                    continue
                seen[key] = (before, action)
                if what := after.fault():
                    raise BrokenError(what, _path(seen, key))
                following.append(after)
        layer = following
        tell(len(seen))
    return len(seen)


def _path(seen: dict[int, tuple[int, Action] | None], key: int) -> tuple[Action, ...]:
    path: list[Action] = []
    while (step := seen[key]) is not None:
        key, action = step
        path.append(action)
    return tuple(reversed(path))
