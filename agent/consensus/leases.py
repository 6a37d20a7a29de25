"""Leases: until when nobody goes on without an agent. Who grants them, what they promise, and who may be called dead.

An agent may let its workers step, and call its record the newest, until its lease is over. A lease is made of promises
not to call somebody dead, because to go on without an agent another one must first have called it dead:

- **Promise.** A beat returns the last beat of its receiver, and promises that its sender will not call the receiver
  dead until `grant_s` after *that* one was sent. It was heard later than it was sent, so the sender keeps the promise
  if it counts from then (`owed`). So no clock is compared with another but for its speed (`DRIFT`), and a beat that was
  lost or late only makes a lease shorter.
- **Grant.** A follower grants its leader what it promises. A leader that was granted a lease by every other member
  leads alone until the first of these ends, and grants its followers what it promises, but no more than it has: until
  then nobody leads but the leader, and the leader has not called them dead. One that leads since the leader before it
  has died passes on what that had granted it; but not if that only refused, since it may lead still, and have called
  others dead.
- **Decide.** A record is a lease for the leader that has proposed it, if all of its members that had a vote have
  accepted it: these have heard the leader then, those that join with it hear of it later, and nobody calls another dead
  sooner than its tolerance after that. One that has not accepted it may have called the leader dead long ago.
- **Join.** Members that join have promised nothing to anybody. They may call the leader dead a tolerance after they
  have heard of the record, which was accepted before. So each older lease ends a tolerance after its holder accepted.
- **Dead.** Nobody is called dead who is owed more time, however short the tolerance has become meanwhile.
- **Left behind.** Who has accepted a record that leaves a member behind grants it nothing, and one that has accepted to
  be left behind itself trusts no lease: that may be decided by now. So it is until there is another record.
- **Part.** An agent that sees a peer die while its own lease stands knows that this peer had never left it behind. What
  a leader has granted outlives it, but not what it was promised itself. So until that is over, whoever had promised it
  something calls nobody dead for being silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from softrun.agent.protocol.model import Beat

DRIFT = 0.01
"""How much faster than this agent's clock another one may run. Leases are shorter by that."""
RENEWALS = 40
"""So often in a tolerance at most a leader looks at what its followers have granted it, of which there may be many."""
MOST_TOLERANCES = 2
"""Nobody promises for longer than so many tolerances (`Liveness.promise_s`): more is not believed."""


class Leases:
    """The leases of one agent, and what it owes others. Times are the engine's, in seconds.

    `tolerance_s`: no agent calls another dead sooner after it was heard. `promise_s` returns for how long after that
    this one promises not to, which is no less.
    """

    def __init__(self, node: str, tolerance_s: float, promise_s: Callable[[], float]) -> None:
        self._node = node
        self._tolerance_s = tolerance_s
        self._promise_s = promise_s
        self._heard: dict[str, tuple[float, float]] = {}  # the last beat of each node, by its clock and by this one's
        self._granted: dict[str, float] = {}  # until when its lease for this agent stands
        self._owed: dict[str, float] = {}
        self._lacking = ""  # a member without whose lease this agent cannot lead
        self._parted: set[str] = set()  # died while this agent's lease stood
        self._leading: set[str] = set()  # have said last that they lead
        self._owed_to_leaders = -inf  # until when one of these that has died was promised something
        self._until = -inf
        self._leads_until = -inf  # until when it leads alone, without what another leader had granted it
        self._renewed_at = -inf
        self._members: tuple[str, ...] = ()
        self.left_behind_at: Callable[[str], float | None] = lambda _node: None
        """When this agent accepted a record that leaves this member behind; None: it has accepted none."""

    @property
    def until(self) -> float:
        """Until when it is certain that nobody has gone on without this agent, or since when it is not any more."""
        left_at = self.left_behind_at(self._node)
        if left_at is not None:
            return min(self._until, left_at)
        return inf if self._members == (self._node,) else self._until

    def owed(self, node: str) -> float:
        """Until when this agent has promised not to call `node` dead for being silent, to itself or to its leader."""
        return max(self._owed.get(node, -inf), self._owed_to_leaders)

    def beat(self, to: str, now: float, *, leads: bool, follows: bool, asks: bool, refused: bool = False) -> Beat:
        """Return the next beat for `to`, which this agent `follows` or not.

        `leads`: this agent leads; `asks`: it asks for a beat in return. `refused`: somebody who may lead has refused.
        """
        echo, heard_at = self._heard.get(to, (0.0, -inf))
        grant_s = self._promise_s() if (leads or follows) and self.left_behind_at(to) is None else 0.0
        if leads:
            until = min(self.until, self._leads_until) if refused else self.until
            grant_s = max(0.0, min(grant_s, until - now))
        if grant_s:
            self._owed[to] = max(self._owed.get(to, -inf), heard_at + grant_s)
        return Beat(now, echo, grant_s, leads, asks)

    def heard(self, node: str, beat: Beat, now: float) -> bool:
        """Take in a beat. Returns whether it is the first from this node."""
        first = node not in self._heard
        self._heard[node] = (beat.at, now)
        (self._leading.add if beat.leads else self._leading.discard)(node)
        until = beat.echo + min(beat.grant_s, MOST_TOLERANCES * self._tolerance_s) * (1 - DRIFT)
        if 0.0 < beat.echo <= now and beat.leads:
            if beat.grant_s or self._until == -inf:  # nothing is granted by a leader whose own lease does not stand
                self._until = max(self._until, until)
        elif 0.0 < beat.echo <= now:
            self._granted[node] = max(self._granted.get(node, -inf), until)
        return first

    def forget(self, node: str) -> None:
        """The link with `node` is lost: the next beat from it is the first again."""
        self._heard.pop(node, None)

    def join(self, members: tuple[str, ...], since: float, now: float, *, accepted_by_all: bool) -> bool:
        """There is a new record, with these members. Returns whether this agent's lease stands and did not before.

        `since`: when this agent accepted it; -inf if it has not. `accepted_by_all`: it is this agent's own proposal,
        and all of its members that had a vote have accepted it.
        """
        stood = now < self.until
        before, self._members, self._lacking = self._members, members, ""
        if not set(members) <= {*before, self._node}:
            self._until = min(self._until, since + self._tolerance_s * (1 - DRIFT))
            self._leads_until = min(self._leads_until, self._until)
        if accepted_by_all:
            self._leads_until = max(self._leads_until, since + self._tolerance_s * (1 - DRIFT))
            self._until = max(self._until, self._leads_until)
        return now < self.until and not stood

    def lead(self, gone: Callable[[str], bool], now: float) -> bool:
        """This agent leads. Returns whether its lease stands and did not before. Call it at every beat."""
        stood = now < self.until
        if self.until == inf or (now < self._leads_until and now < self._renewed_at + self._tolerance_s / RENEWALS):
            return False
        if self._lacks(self._lacking, gone, now):
            return False
        self._lacking = next((node for node in self._members if self._lacks(node, gone, now)), "")
        if self._lacking:
            return False
        self._renewed_at = now
        needed = (node for node in self._members if not self._is_excused(node, gone))
        until = min((self._granted[node] for node in needed), default=now + self._promise_s())
        self._leads_until = max(self._leads_until, until)
        self._until = max(self._until, self._leads_until)
        return now < self.until and not stood

    def _lacks(self, node: str, gone: Callable[[str], bool], now: float) -> bool:
        """Whether the lease of `node` is missing."""
        return bool(node) and not self._is_excused(node, gone) and self._granted.get(node, -inf) <= now

    def _is_excused(self, node: str, gone: Callable[[str], bool]) -> bool:
        return node == self._node or (node in self._parted and gone(node))

    def part(self, node: str, now: float) -> None:
        """Note that the process of `node` has ended by `now`."""
        if node in self._leading:
            self._owed_to_leaders = max(self._owed_to_leaders, self._owed.get(node, -inf))
        if now < self.until:
            self._parted.add(node)

    def meet(self, node: str) -> None:
        """Note that `node` lives."""
        self._parted.discard(node)

    def parted(self, nodes: Iterable[str]) -> bool:
        """Whether each of these died while this agent's lease stood, so none of them had left it behind."""
        return all(node in self._parted for node in nodes)
