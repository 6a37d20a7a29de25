"""Agents of another secret or release at the endpoints of a simulated job: they answer, and tell nothing.

Neither knows more of the other than that. So one of them stands for all: it has the port of an endpoint for a while.
What it does is drawn from a source of its own, and the rest of a seed is drawn as without it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from softrun.agent.links.handshake import ANOTHER_RELEASE, ANOTHER_TOKEN, MAYBE_OURS
from softrun.agent.protocol.model import Address

if TYPE_CHECKING:
    from simulation.cluster import Cluster

STAYS_S = (0.1, 8.0)
assert {ANOTHER_TOKEN, ANOTHER_RELEASE} <= MAYBE_OURS


class Strangers:
    """Those of one seed, until everything is healed: whoever has started them ends them then."""

    def __init__(self, seed: int, cluster: Cluster, endpoints: Sequence[Address], every_s: float) -> None:
        self._rng = random.Random(f"strangers {seed}")
        self._cluster = cluster
        self._endpoints = endpoints
        self._every_s = every_s
        self._breaking = True
        self._after(self._rng.choice((0.0, self._rng.expovariate(1 / every_s))), self._come)

    def heal(self) -> None:
        self._breaking = False
        self._cluster.network.strangers.clear()

    def _after(self, delay_s: float, act: Callable[[], None]) -> None:
        self._cluster.after(delay_s, lambda: act() if self._breaking else None)

    def _come(self) -> None:
        self._after(self._rng.expovariate(1 / self._every_s), self._come)
        endpoint = self._rng.choice(self._endpoints)
        holder = self._cluster.network.holder(endpoint)
        if holder is None or not holder.alive:  # else the port is taken
            what = self._rng.choice((ANOTHER_TOKEN, ANOTHER_RELEASE))
            self._cluster.network.strangers[endpoint] = (what, self._cluster.now)
            self._after(self._rng.uniform(*STAYS_S), lambda: self._go(endpoint))

    def _go(self, endpoint: Address) -> None:
        self._cluster.network.strangers.pop(endpoint, None)
