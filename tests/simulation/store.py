"""Who keeps the record: the agents themselves (`Agreement`), or a store with leases (`LeasedStore`).

The leased one behaves as real etcd was seen to (`tests/shells/test_etcd.py`): a lease expires only while the store is
there, and never before its owner could know; when the store was away all leases that stood begin anew; a client repeats
a renewal until it is answered, and counts its lease from when the answered request was sent. It has one record, changed
by compare-and-swap. Requests and replies can be slow or lost, so a proposal may be applied without its proposer hearing
of it. Watchers are pushed the newest record; one that was cut off gets it later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from softrun.agent.protocol import codec
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.model import Round

if TYPE_CHECKING:
    from simulation.cluster import Cluster, Node

CALL_TIMEOUT_S = 0.3  # then a client asks again

_decode_round = lru_cache(maxsize=256)(codec.decode_round)


class Keeper:
    """What the rest of the simulation asks whoever keeps the record."""

    lease_s = 0.0

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.round: Round | None = None
        """The newest record."""
        self.writes = 0
        self.back_at = 0.0  # when it was away last

    def begin(self, node: Node) -> None:
        """Tell a driver what it is told first."""
        self._cluster.deliver(node, saw.Tick())

    def ended(self) -> None:
        """An agent has ended."""

    def made_at(self, round_: Round) -> float:
        """When this record was proposed, as far as that matters: it may be decided much later."""
        return self._cluster.now

    def propose(self, node: Node, round_: Round) -> None:
        raise AssertionError(f"{node.name} has no store")

    def renew(self, node: Node) -> None:
        raise AssertionError(f"{node.name} renews a lease in a store that has none")

    def end_lease(self, node: Node, effect: do.EndLease) -> None:
        raise AssertionError(f"{node.name} ends a lease in a store that has none")

    def reconnect(self, node: Node) -> None:
        node.store_cut = False

    def leave(self, node: Node) -> None:
        """This agent ends in order."""

    def in_doubt(self, name: str) -> bool:
        """Was the lease of this node not renewed for most of its time?"""
        return False

    def was_in_doubt(self, name: str) -> bool:
        """Was it ever?"""
        return False


class Agreement(Keeper):
    """No store: the agents agree. This is the history of what they have agreed on."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.records: dict[tuple[str, int], Round] = {}
        self._makers: dict[Round, tuple[Node, float]] = {}
        self._cut_off: set[str] = set()

    def made(self, node: Node, round_: Round) -> None:
        self._makers.setdefault(round_, (node, self._cluster.now))

    def made_at(self, round_: Round) -> float:
        return self._makers[round_][1] if round_ in self._makers else self._cluster.now

    def adopted(self, node: Node, round_: Round, last: Round | None) -> None:
        for watcher in self._cluster.watchers:
            watcher.adopted(node, round_)
        key = (round_.lineage, round_.version)
        if key in self.records:
            self._choose(round_)
            return
        self.records[key] = round_
        self.writes += 1
        before = self.records.get((round_.lineage, round_.version - 1))
        if before is None and last is not None and last.version == round_.version - 1:
            before = last  # the founder of another lineage takes over
        self._choose(round_)
        by = self._makers[round_][0] if round_ in self._makers else node
        for watcher in self._cluster.watchers:
            watcher.recorded(before, round_, by)

    def ended(self) -> None:
        self._choose(self.round)

    def _choose(self, otherwise: Round | None) -> None:
        """The newest record is that of the job that has come furthest, of those that have agents."""
        held = [n.engine.record for n in self._cluster.nodes.values() if n.alive and n.engine.record is not None]
        self.round = max(held, key=self._rank, default=otherwise)

    @staticmethod
    def _rank(round_: Round) -> tuple[bool, int, str, int]:
        return (not round_.is_last, round_.number, round_.lineage, round_.version)

    def looked_at(self, node: Node) -> None:
        if node.engine.is_cut_off:
            self._cut_off.add(node.name)

    def was_in_doubt(self, name: str) -> bool:
        return name in self._cut_off


class Store(Keeper):
    """The one record in a store."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._watchers: list[Node] = []

    def propose(self, node: Node, round_: Round) -> None:
        data = codec.encode_round(round_)
        self._ask(node, partial(self._swap, node, data))

    def _swap(self, by: Node, data: bytes) -> saw.Observation:
        proposed = _decode_round(data)
        before = self.round
        if self._takes(by) and proposed.version == (before.version if before is not None else 0) + 1:
            self.round = proposed
            self.writes += 1
            for watcher in self._cluster.watchers:
                watcher.recorded(before, proposed, by)
            for node in self._watchers:
                if node.alive:
                    self._cluster.after(self._cluster.draw(self._cluster.timing.store), self._push, node)
        return saw.RecordSeen(self.round)

    def _takes(self, by: Node) -> bool:
        """Whether this agent may change the record."""
        return True

    def _push(self, node: Node) -> None:
        if node.store_cut:
            node.watch_due = True
        else:
            self._cluster.deliver(node, saw.RecordSeen(self.round))

    def reconnect(self, node: Node) -> None:
        node.store_cut = False
        if node.watch_due:
            node.watch_due = False
            self._push(node)

    def _ask(self, node: Node, serve: Callable[[], saw.Observation | None]) -> None:
        if not node.store_cut and not self._cluster.chance(self._cluster.weather.lose_request):
            self._cluster.after(self._delay(), self._serve, node, serve)

    def _serve(self, node: Node, serve: Callable[[], saw.Observation | None]) -> None:
        answer = serve()
        if answer is not None and not self._cluster.chance(self._cluster.weather.lose_reply):
            self._cluster.after(self._delay(), self._answer, node, answer)

    def _answer(self, node: Node, answer: saw.Observation) -> None:
        if not node.store_cut:
            self._cluster.deliver(node, answer)

    def _delay(self) -> float:
        cluster = self._cluster
        slow = cluster.weather.slow_s if cluster.chance(cluster.weather.slow) else (0.0, 0.0)
        return cluster.draw(cluster.timing.store) + cluster.draw(slow)


class LeasedStore(Store):
    def __init__(self, cluster: Cluster, lease_s: float) -> None:
        super().__init__(cluster)
        self.lease_s = lease_s
        self.away = False
        self._leases: dict[str, tuple[int, float]] = {}  # lease_number, expires at
        self._terms: dict[str, int] = {}
        self._renewing: set[str] = set()
        self._untold: dict[str, list[tuple[str, int]]] = {}  # expired while this node was cut off
        self._sure_until: dict[str, float] = {}  # as far as each node has been told
        self._doubted: set[str] = set()

    def begin(self, node: Node) -> None:
        if not self._reaches(node):
            if node.alive:
                self._cluster.after(CALL_TIMEOUT_S, self.begin, node)
            return
        self._watchers.append(node)
        self._sure_until[node.name] = self._cluster.now + self.lease_s
        self._cluster.deliver(node, self._grant(node, self._cluster.now))
        self._cluster.deliver(node, saw.RecordSeen(self.round))
        members = self.round.members if self.round is not None else ()
        missing = tuple(
            (m.node, m.lease_number) for m in members if self._leases.get(m.node, (0, 0.0))[0] != m.lease_number
        )
        if missing:
            self._cluster.deliver(node, saw.LeasesExpired(missing))

    def renew(self, node: Node) -> None:
        if node.name not in self._renewing:
            self._renewing.add(node.name)
            self._try_to_renew(node)

    def _takes(self, by: Node) -> bool:
        return by.name in self._leases

    def end_lease(self, node: Node, effect: do.EndLease) -> None:
        self._ask(node, partial(self._end_for, node, effect))

    def _end_for(self, by: Node, effect: do.EndLease) -> None:
        stands = self.round is not None and self.round.version == effect.version
        if stands and self._has_lease(by.name, effect.by) and self._has_lease(effect.node, effect.lease_number):
            self._doubted.add(effect.node)
            self._end(effect.node)

    def _has_lease(self, name: str, lease_number: int) -> bool:
        return name in self._leases and self._leases[name][0] == lease_number

    def leave(self, node: Node) -> None:
        if node.name in self._leases and self._reaches(node):
            self._end(node.name)

    def in_doubt(self, name: str) -> bool:
        return self._cluster.now > self._sure_until[name] - self.lease_s / 2

    def was_in_doubt(self, name: str) -> bool:
        return name in self._doubted or self.in_doubt(name)

    def go_away(self) -> None:
        self.away = True

    def come_back(self) -> None:
        if not self.away:
            return
        self.away, self.back_at = False, self._cluster.now
        for name, (lease_number, _) in list(self._leases.items()):
            self._extend(name, lease_number)

    def reconnect(self, node: Node) -> None:
        super().reconnect(node)
        if untold := self._untold.pop(node.name, None):
            self._cluster.deliver(node, saw.LeasesExpired(tuple(untold)))

    def _reaches(self, node: Node) -> bool:
        return node.alive and not (self.away or node.store_cut or node.stalled)

    def _serve(self, node: Node, serve: Callable[[], saw.Observation | None]) -> None:
        if not self.away:
            super()._serve(node, serve)

    def _try_to_renew(self, node: Node) -> None:
        if not node.alive:
            return
        if not self._reaches(node) or self._cluster.chance(self._cluster.weather.lose_request):
            self._cluster.after(CALL_TIMEOUT_S, self._try_to_renew, node)
        else:
            self._cluster.after(self._delay(), self._renew, node, self._cluster.now)

    def _renew(self, node: Node, sent_at: float) -> None:
        if not self._reaches(node):
            self._try_to_renew(node)
            return
        if node.name in self._leases:
            lease_number = self._leases[node.name][0]
            self._extend(node.name, lease_number)
            renewed = self._renewed(node, sent_at, lease_number)
        else:
            renewed = self._grant(node, sent_at)
        if self._cluster.chance(self._cluster.weather.lose_reply):
            self._cluster.after(CALL_TIMEOUT_S, self._try_to_renew, node)
        else:
            self._cluster.after(self._delay(), self._answer_renewal, node, renewed)

    def _answer_renewal(self, node: Node, renewed: saw.LeaseRenewed) -> None:
        if node.alive and (node.store_cut or self.away):
            self._try_to_renew(node)
            return
        self._renewing.discard(node.name)
        if self.was_in_doubt(node.name):
            self._doubted.add(node.name)
        self._sure_until[node.name] = node.true_time(renewed.until)
        self._cluster.deliver(node, renewed)

    def _grant(self, node: Node, sent_at: float) -> saw.LeaseRenewed:
        lease_number = self._terms[node.name] = self._terms.get(node.name, 0) + 1
        self._extend(node.name, lease_number)
        return self._renewed(node, sent_at, lease_number)

    def _renewed(self, node: Node, sent_at: float, lease_number: int) -> saw.LeaseRenewed:
        return saw.LeaseRenewed(node.clock(sent_at) + self.lease_s, lease_number, self.lease_s)

    def _extend(self, name: str, lease_number: int) -> None:
        until = self._cluster.now + self.lease_s
        self._leases[name] = (lease_number, until)
        self._cluster.after(self.lease_s, self._expire, name, until)

    def _expire(self, name: str, until: float) -> None:
        if not self.away and name in self._leases and self._leases[name][1] == until:
            self._end(name)

    def _end(self, name: str) -> None:
        lease_number, _ = self._leases.pop(name)
        for node in self._watchers:
            if node.alive and node.store_cut:
                self._untold.setdefault(node.name, []).append((name, lease_number))
            elif node.alive:
                delay = self._cluster.draw(self._cluster.timing.store)
                self._cluster.after(delay, self._cluster.deliver, node, saw.LeasesExpired(((name, lease_number),)))
