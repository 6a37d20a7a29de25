"""Any number of simulated agents that start, lose one and let one go, with what that costs counted."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from simulation.cluster import Cluster, Node
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.model import Beat, JobSettings, Phase
from softrun.agent.store.settings import RendezvousSettings
from softrun.policies import load_policy
from softrun.runtime.events import WorkerState

SIGTERM = 15
PATIENCE_S = 30.0  # of virtual time


@dataclass(frozen=True)
class Cost:
    """Of one change of the world. Beats, which are made in any second, are not in it."""

    asked: int  # of the store, watches left out
    writes: int  # of the record
    messages: int  # from one agent to another
    bytes: int  # of all messages, the beats among them
    observations: int  # that engines took in, by all agents
    most: int  # and by the one that took in most: the leader
    seconds: float  # of virtual time


class Crowd:
    def __init__(self, nodes: int, lease_s: float | None = None, may_go: int = 3, like: int = 0) -> None:
        """`like`: they beat as in a job of so many nodes; by default once a second."""
        self.cluster = Cluster(random.Random(nodes), lease_s=lease_s)
        self.cluster.listeners.append(self._count)
        self._job = JobSettings(nodes - may_go, nodes, "soft", "no-replace")
        self._nodes = nodes
        settings = RendezvousSettings()
        self._beat_s = settings.beat_interval_s(like) if like else 1.0
        self._tolerance_s = settings.tolerance_s(like) if like else 5.0
        self._told: dict[str, int] = {}  # how many nodes there are in the world that it was told of
        self._clear()

    def start(self) -> Cost:
        """All agents start at once."""
        policy = load_policy("soft")
        for i in range(self._nodes):
            config = EngineConfig(
                self._job,
                f"node-{i}",
                f"host-{i}",
                7000,
                "trainer",
                1,
                0,
                beat_interval_s=self._beat_s,
                beat_tolerance_s=self._tolerance_s,
            )
            self.cluster.start(config, policy)
        return self._until_told()

    def lose(self, node: Node, silent: bool = False) -> Cost:
        """Its process dies; if `silent`, its host is off."""
        self.cluster.crash(node, silent=silent)
        return self._until_told()

    def dismiss(self, node: Node) -> Cost:
        """It gets SIGTERM."""
        self.cluster.deliver(node, saw.Signalled(SIGTERM))
        return self._until_told(leaves=node)

    def end(self, within_s: float) -> int:
        """All get SIGTERM, in their order, within so many seconds. Returns how many links they begin until they end."""
        record = self.cluster.store.round
        dialled: list[do.Dial] = []

        def count(_node: Node, _seen: saw.Observation, effects: list[do.Effect]) -> None:
            dialled.extend(effect for effect in effects if isinstance(effect, do.Dial))

        self.cluster.listeners.append(count)
        for number, member in enumerate(record.members if record is not None else ()):
            node = self.cluster.nodes[member.node]
            self.cluster.after(number * within_s / self._nodes, self.cluster.deliver, node, saw.Signalled(SIGTERM))
        while any(node.alive for node in self.cluster.nodes.values()):
            self.cluster.run_until(self.cluster.now + 0.1)
            if self.cluster.now > self._began + PATIENCE_S:
                raise AssertionError(f"some still run after {PATIENCE_S:g} s")
        return len(dialled)

    def leader(self) -> Node:
        record = self.cluster.store.round
        if record is None:
            raise AssertionError("nobody has begun")
        return self.cluster.nodes[record.members[0].node]

    def follower(self) -> Node:
        """One that lives and does not lead."""
        record = self.cluster.store.round
        if record is None:
            raise AssertionError("nobody has begun")
        return self.cluster.nodes[record.members[len(record.members) // 2].node]

    def settle(self) -> Cost:
        """What follows without any news in half a second, beats left out."""
        self._clear()
        self.cluster.run_until(self.cluster.now + 0.5)
        return self._cost()

    def _until_told(self, leaves: Node | None = None) -> Cost:
        expected = {n.name for n in self.cluster.nodes.values() if n.alive and n is not leaves}
        while True:
            self.cluster.run_until(self.cluster.now + 0.001)
            record = self.cluster.store.round
            met = record is not None and record.phase is Phase.SEALED and len(record.members) == len(expected)
            if met and all(self._told.get(name) == len(expected) for name in expected):
                return self._cost()
            if self.cluster.now > self._began + PATIENCE_S:
                raise AssertionError(f"no world of {len(expected)} in {PATIENCE_S:g} s")

    def _clear(self) -> None:
        self._began, self._writes = self.cluster.now, self.cluster.store.writes
        self._asked = self._messages = 0
        self._bytes = self.cluster.network.sent_bytes
        self._observations: Counter[str] = Counter()

    def _cost(self) -> Cost:
        cost = Cost(
            self._asked,
            self.cluster.store.writes - self._writes,
            self._messages,
            self.cluster.network.sent_bytes - self._bytes,
            self._observations.total(),
            max(self._observations.values(), default=0),
            self.cluster.now - self._began,
        )
        self._clear()
        return cost

    def _count(self, node: Node, seen: saw.Observation, effects: list[do.Effect]) -> None:
        if not (isinstance(seen, saw.Tick) or (isinstance(seen, saw.Heard) and isinstance(seen.message, Beat))):
            self._observations[node.name] += 1
        for effect in effects:
            match effect:
                case do.Propose():
                    self._asked += 1
                case do.Say(to, message) if not isinstance(message, Beat):
                    self._messages += 1 if to is not None else len(node.inbound)
                case do.Tell(state=WorkerState.HEALTHY, info=info):
                    self._told[node.name] = info.group_world_size
                case do.Spawn(tells):
                    self._told[node.name] = tells[0].info.group_world_size
                case _:
                    pass
