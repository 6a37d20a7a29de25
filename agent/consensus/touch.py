"""How long it is certain that the others have not gone on without this agent: leases that agents grant each other.

Every beat returns the last beat of its receiver and grants a lease that counts from when *that* one was sent, by the
receiver's own clock. So no clock is compared with another, and a beat that was lost or late only makes a lease shorter.

- A follower grants its leader that it will not take it for dead within the tolerance.
- A leader that holds such a lease from every other member leads alone until the first of them ends: to take its place a
  member must have taken it for dead. To each follower it grants a lease for that time, at most for its tolerance.

An agent that sees a peer die while its own lease stands knows that this peer had never left it behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from softrun.agent.protocol.model import Beat

DRIFT = 0.01
"""How much faster than this agent's clock another one may run. Leases are shorter by that."""


class Touch:
    """The leases of one agent. Times are the engine's, in seconds.

    `promise_s` returns how long after it was heard this agent will not take a peer for dead.
    """

    def __init__(self, node: str, promise_s: Callable[[], float]) -> None:
        self._node = node
        self._promise_s = promise_s
        self._heard: dict[str, float] = {}  # the last beat of each node, by its clock
        self._granted: dict[str, float] = {}  # until when its lease for this agent stands
        self._lacking = ""  # a member without whose lease this agent cannot lead
        self._parted: set[str] = set()  # died while this agent's lease stood
        self._until = -inf  # never falls
        self._members: tuple[str, ...] = ()

    @property
    def until(self) -> float:
        """Until when it is certain that nobody has gone on without this agent, or since when it is not any more."""
        return inf if self._members == (self._node,) else self._until

    def beat(self, to: str, now: float, *, leads: bool, follows: bool, asks: bool) -> Beat:
        """Return the next beat for `to`, which this agent `follows` or not.

        `leads`: this agent leads; `asks`: it asks for a beat in return.
        """
        grant_s = self._promise_s() if leads or follows else 0.0
        if leads:
            grant_s = max(0.0, min(grant_s, self.until - now))
        return Beat(now, self._heard.get(to, 0.0), grant_s, leads, asks)

    def heard(self, node: str, beat: Beat, now: float) -> bool:
        """Take in a beat. Returns whether it is the first from this node."""
        first = node not in self._heard
        self._heard[node] = beat.at
        until = beat.echo + beat.grant_s * (1 - DRIFT)
        if 0.0 < beat.echo <= now and beat.leads:
            if beat.grant_s or self._until == -inf:  # nothing is granted by a leader whose own lease does not stand
                self._until = max(self._until, until)
        elif 0.0 < beat.echo <= now:
            self._granted[node] = max(self._granted.get(node, -inf), until)
        return first

    def forget(self, node: str) -> None:
        """The link with `node` is lost: the next beat from it is the first again."""
        self._heard.pop(node, None)

    def join(self, members: tuple[str, ...]) -> None:
        """There is a new record, with these members."""
        self._members, self._lacking = members, ""

    def lead(self, gone: Callable[[str], bool], now: float) -> bool:
        """This agent leads. Returns whether its lease stands and did not before. Call it at every beat."""
        stood = now < self.until
        if self.until - now > self._promise_s() / 2 or self._lacks(self._lacking, gone, now):
            return False
        self._lacking = next((node for node in self._members if self._lacks(node, gone, now)), "")
        if self._lacking:
            return False
        needed = (node for node in self._members if not self._is_excused(node, gone))
        until = min((self._granted[node] for node in needed), default=now + self._promise_s())
        self._until = max(self._until, until)
        return not stood

    def _lacks(self, node: str, gone: Callable[[str], bool], now: float) -> bool:
        """Whether the lease of `node` is missing."""
        return bool(node) and not self._is_excused(node, gone) and self._granted.get(node, -inf) <= now

    def _is_excused(self, node: str, gone: Callable[[str], bool]) -> bool:
        return node == self._node or (node in self._parted and gone(node))

    def part(self, node: str, now: float) -> None:
        """Note that the process of `node` has ended by `now`."""
        if now < self.until:
            self._parted.add(node)

    def meet(self, node: str) -> None:
        """Note that `node` lives."""
        self._parted.discard(node)

    def parted(self, nodes: Iterable[str]) -> bool:
        """Whether each of these died while this agent's lease stood, so none of them had left it behind."""
        return all(node in self._parted for node in nodes)
