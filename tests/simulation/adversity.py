"""What befalls networks and clocks beyond a clean cut: one-way and partial cuts, resets between hosts that live, links
that break with what is under way, nodes that end with all that could say so, drift, loops that lag, addresses that
change hands.

It draws by itself, so that the lives without it stay as they are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import combinations

from simulation.cluster import Cluster
from softrun.agent.consensus import leases

DRIFT = leases.DRIFT / 3
"""Two clocks go apart by no more than the agents reckon with."""
TAKES_OVER = 0.5
REFUSES = 0.3
BARE = 0.3
LAGS, LAG_S = 0.3, 0.1


class Adversity:
    """The network, clocks and addresses of one seed, until everything is healed."""

    def __init__(self, seed: int, cluster: Cluster, every_s: float, patience_s: float) -> None:
        self._rng = random.Random(f"adversity {seed}")
        self._cluster = cluster
        self._every_s = every_s * self._rng.choice((1.0, 3.0, 10.0))
        self._patience_s = patience_s
        self._drifts = self._rng.random() < 0.5
        self._hands_over = self._rng.random() < 0.5
        self._breaking = True
        self._after(self._rng.expovariate(1 / self._every_s), self._strike)
        self._wear = random.Random(f"wear {seed}")
        if seed // 6 % 2:
            cluster.lag = self._lag
            self._after(self._wear.expovariate(1 / self._every_s), self._break_links)

    def rate(self) -> float:
        """How fast the clock of the next node goes."""
        return 1.0 + self._rng.uniform(-DRIFT, DRIFT) if self._drifts else 1.0

    def host(self, name: str) -> str:
        """The host of the next node: its own, or that of a node that has ended."""
        left = [node.config.host for node in self._cluster.nodes.values() if not node.alive]
        taken = {node.config.host for node in self._cluster.nodes.values() if node.alive}
        free = [host for host in dict.fromkeys(left) if host not in taken]
        return self._rng.choice(free) if self._hands_over and free and self._rng.random() < TAKES_OVER else name

    def heal(self) -> None:
        """From now on nothing befalls them."""
        self._breaking = False
        self._cluster.lag = lambda: 0.0

    def _after(self, delay_s: float, act: Callable[[], None]) -> None:
        self._cluster.after(delay_s, lambda: act() if self._breaking else None)

    def _strike(self) -> None:
        self._after(self._rng.expovariate(1 / self._every_s), self._strike)
        if self._rng.random() < REFUSES:
            self._cluster.network.refuse(self._some_pairs(self._rng.choice((0.2, 0.5, 1.0))))
        for sender, receiver in self._ways() if self._rng.random() >= REFUSES else ():
            self._cluster.network.cut_way(sender, receiver)
        odds = self._rng.choice((0.0, 0.5, 1.0))
        self._after(self._rng.uniform(0.1, 3 * self._patience_s), lambda: self._cluster.network.heal(odds))

    def _break_links(self) -> None:
        self._after(self._wear.expovariate(1 / self._every_s), self._break_links)
        odds = self._wear.choice((0.1, 0.5, 1.0))
        for link in self._cluster.network.links():
            if link.up and self._wear.random() < odds:
                self._cluster.network.sever(link)

    def _lag(self) -> float:
        return self._wear.uniform(0.0, LAG_S) if self._wear.random() < LAGS else 0.0

    def bares(self) -> bool:
        """Whether what would tell of a node's end is killed with it."""
        return self._rng.random() < BARE

    def _some_pairs(self, odds: float) -> list[tuple[str, str]]:
        """All pairs between two sides, or some of all."""
        names = self._names()
        pairs = list(combinations(names, 2))
        if self._rng.random() < 0.5:
            one_side = {name for name in names if self._rng.random() < 0.5}
            pairs = [(a, b) for a, b in pairs if (a in one_side) != (b in one_side)]
        return [pair for pair in pairs if self._rng.random() < odds]

    def _names(self) -> list[str]:
        return [node.name for node in (*self._cluster.nodes.values(), *self._cluster.witnesses.started.values())]

    def _ways(self) -> Iterable[tuple[str, str]]:
        """The ways that are cut at once, each from a sender to a receiver."""
        names = self._names()
        one = self._rng.choice(names)
        others = [name for name in names if name != one]
        match self._rng.choice(("way", "link", "deaf", "mute", "some")):
            case "deaf":
                return [(other, one) for other in others]
            case "mute":
                return [(one, other) for other in others]
            case "some":
                pairs = [pair for pair in combinations(names, 2) if self._rng.random() < 0.4]
                return [way for a, b in pairs for way in ((a, b), (b, a))]
            case kind if others:
                other = self._rng.choice(others)
                return [(one, other), (other, one)] if kind == "link" else [(one, other)]
        return []
