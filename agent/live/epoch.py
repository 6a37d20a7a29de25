"""One world as the calls of its workers see it: who must call, who has departed, and what was decided last."""

from __future__ import annotations

from softrun.agent.protocol.live import EVERYBODY, Scope, Verdict, name_of
from softrun.agent.protocol.model import Round


class Epoch:
    """The workers of a world, by name, in rank order, and the last verdict on each scope that was delivered here."""

    def __init__(self, round_: Round) -> None:
        self.number = round_.number
        self.members: dict[str, str] = {
            name_of(m.node, w.local_rank): f"{m.incarnation}.{w.incarnation}" for m in round_.members for w in m.workers
        }
        """The incarnation of each worker."""
        self.coordinator = round_.members[0].node
        self.delivered: dict[Scope, Verdict] = {}
        self.departed: set[str] = set()
        self._nodes = {name_of(m.node, w.local_rank): (m.node, w.local_rank) for m in round_.members for w in m.workers}
        self._needed: dict[Scope, dict[str, frozenset[int]]] = {}

    def depart(self, names: set[str]) -> None:
        """Note that these workers make no more calls in this epoch."""
        if not names <= self.departed:
            self.departed |= names
            self._needed.clear()

    def needed(self, scope: Scope) -> dict[str, frozenset[int]]:
        """Return the local ranks whose calls a verdict on this scope takes, by node."""
        known = self._needed.get(scope)
        if known is None:
            found: dict[str, set[int]] = {}
            for name in scope or self.members:
                if name not in self.departed:
                    node, local_rank = self._nodes[name]
                    found.setdefault(node, set()).add(local_rank)
            known = {node: frozenset(local_ranks) for node, local_ranks in found.items()}
            self._needed[scope] = known
        return known

    def awaited(self, scope: Scope) -> int:
        """Return the number of the verdict on this scope that comes next."""
        last = self.delivered.get(scope)
        return last.turn + 1 if last is not None else 1

    def lost(self, after: Round) -> tuple[str, ...]:
        """Return the workers of this epoch, by name, that are not in `after`."""
        there = {
            name_of(m.node, w.local_rank): f"{m.incarnation}.{w.incarnation}" for m in after.members for w in m.workers
        }
        return tuple(
            name for name, life in self.members.items() if there.get(name) != life and name not in self.departed
        )

    def strangers(self, scope: Scope) -> tuple[str, ...]:
        """Return the names in the scope that no worker of this epoch has."""
        return tuple(name for name in scope if name not in self.members)


def full(scope: Scope, epoch: Epoch) -> Scope:
    """Return the scope in its shortest form: nobody named is everybody."""
    return EVERYBODY if not scope or len(scope) == len(epoch.members) else scope
