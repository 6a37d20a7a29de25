"""The job's witness in the simulated world: its process, and what befalls it.

It is no node, so no checker looks at it but for what it believes to be the record. What befalls it is drawn from a
source of its own: the rest of a seed is drawn as without a witness.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.store import Agreement
from softrun.agent.consensus.witness import Witness
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.model import Address, JobSettings

if TYPE_CHECKING:
    from simulation.cluster import Cluster, Node

PLACE = Address("host-witness", 7000)


class Witnesses:
    """The processes that were started at `PLACE`, one after the other; the last may be running."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.started: dict[str, Node] = {}

    @property
    def running(self) -> Node | None:
        last = next(reversed(self.started.values()), None)
        return last if last is not None and last.alive else None

    def start(self, offset: float = 0.0) -> Node:
        from simulation.cluster import Node

        if self.running is not None:
            raise AssertionError("two witnesses at one address")
        name, now = f"w{len(self.started) + 1}", self._cluster.now
        nobodys = JobSettings(1, 1, "soft", "no-replace")
        config = EngineConfig(nobodys, name, PLACE.host, PLACE.port, "witness", 0, 0)
        engine: object = Witness(name, now + offset)
        node = Node(name, config, engine, offset, born=now)  # type: ignore[arg-type]  # no Engine
        self.started[name] = node
        self._cluster.network.listen(node)
        return node

    def end(self, silent: bool = False) -> None:
        """Its process ends; `silent`: its host with it."""
        node = self.running
        if node is not None:
            node.alive, node.bare, node.died, node.dark = False, True, self._cluster.now, silent
            self._cluster.network.process_ended(node, silent)

    def observe(self, node: Node, seen: saw.Observation) -> None:
        witness: Witness = node.engine  # type: ignore[assignment]
        before = witness.record
        effects = witness.observe(seen, node.clock(self._cluster.now))
        record = witness.record
        if record is not None and record is not before and isinstance(self._cluster.store, Agreement):
            self._cluster.store.adopted(node, record, before)
        for effect in effects:
            match effect:
                case do.Say(to, message):
                    self._cluster.network.say(node, to, message)
                case do.End():
                    self.end()
                case do.Note():
                    pass
                case _:
                    raise AssertionError(f"a witness does {effect}")


class Misfortunes:
    """What befalls the witness of one seed, until everything is healed."""

    def __init__(self, seed: int, witnesses: Witnesses, cluster: Cluster, every_s: float, patience_s: float) -> None:
        self._rng = random.Random(f"witness {seed}")
        self._witnesses = witnesses
        self._cluster = cluster
        self._every_s = every_s * self._rng.choice((2.0, 10.0, 100.0))
        self._patience_s = patience_s
        self._breaking = True
        self._after(self._rng.uniform(0.0, 3.0), self._begin)
        self._after(self._rng.expovariate(1 / self._every_s), self._strike)

    def heal(self) -> None:
        self._breaking = False
        node = self._witnesses.running
        if node is not None:
            node.side = 0
            self._cluster.wake(node)
        elif self._rng.random() < 0.5:
            self._begin()

    def _after(self, delay_s: float, act: Callable[[], None]) -> None:
        self._cluster.after(delay_s, lambda: act() if self._breaking else None)

    def _begin(self) -> None:
        if self._witnesses.running is None:
            self._witnesses.start(self._rng.uniform(0, 1000))

    def _strike(self) -> None:
        self._after(self._rng.expovariate(1 / self._every_s), self._strike)
        node, for_s = self._witnesses.running, self._rng.uniform(0.1, 3 * self._patience_s)
        if node is None:
            return
        match self._rng.choice(("kill", "power off", "replace", "stall", "cut")):
            case "kill" | "power off" as how:
                self._witnesses.end(silent=how == "power off")
                self._after(for_s, self._begin)
            case "replace":
                self._witnesses.end()
                self._begin()
            case "stall":
                self._cluster.stall(node)
                self._after(for_s, lambda: self._cluster.wake(node))
            case "cut":
                node.side = self._rng.choice((0, 1, 2))
                self._after(for_s, lambda: self._cluster.network.heal(break_odds=0.5))
