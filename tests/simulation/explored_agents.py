"""The agents that the explorer tries: the real replica and leases, with what an engine does around them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

from values import member

from softrun.agent.consensus.leases import Leases
from softrun.agent.consensus.replica import Peers, Replica
from softrun.agent.consensus.witness import Witness
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.model import (
    Accept,
    Accepted,
    Beat,
    Change,
    Decided,
    Hello,
    LastWords,
    Message,
    NodeIntent,
    Prepare,
    Promise,
    Record,
    Refused,
    Report,
    Round,
    Witnessed,
)

TOLERANCE = 2
"""In beats."""
WITNESS = "w"


class Agent:
    """One of the three. It is not changed once a `World` has it: each action makes a copy."""

    def __init__(self, node: str, first: Round) -> None:
        self.node = node
        self.member = member(node)
        self.now = 0.0
        self.alive = True
        self.paused = False
        self.following = next(iter(first.by_node))
        self.heard_at: dict[str, float] = {}
        self.gone: frozenset[str] = frozenset()
        self.replica = Replica(node, self._peers())
        self.leases = Leases(node, TOLERANCE, lambda: TOLERANCE)
        self.leases.left_behind_at = self.replica.left_behind_at
        self.replica.read(first)
        self._adopt()

    def copy(self) -> Agent:
        """An agent that may be changed."""
        other = _copied(self)
        for name in ("key", "wish"):
            vars(other).pop(name, None)
        other.replica, other.leases = _copied(self.replica), _copied(self.leases)
        other.replica._ancestry = _copied(self.replica._ancestry)
        if (attempt := other.replica._attempt) is not None:
            other.replica._attempt = replace(attempt, missing=dict(attempt.missing), answered=set(attempt.answered))
        other.replica._peers = other._peers()
        other.leases.left_behind_at = other.replica.left_behind_at
        return other

    def _peers(self) -> Peers:
        return Peers(
            gone=lambda node: node in self.gone,
            silent=self.is_dead,
            missed=self.is_dead,
            stands=lambda: self.now < self.leases.until,
            now=lambda: self.now,
        )

    @property
    def record(self) -> Round:
        assert self.replica.record is not None
        return self.replica.record

    @property
    def is_placed(self) -> bool:
        return self.node in self.record.by_node

    @property
    def works(self) -> bool:
        """Whether its workers may complete a step."""
        at_work = self.is_placed and not (self.paused or self.node in self.record.finished_nodes)
        return self.alive and at_work and self.now < self.leases.until

    def is_dead(self, node: str) -> bool:
        """Whether it takes `node` for dead."""
        if node == self.node:
            return False
        heard_at = self.heard_at.get(node, 0.0)
        if node == WITNESS:
            return not self.leads or self.now >= heard_at + TOLERANCE
        return node in self.gone or self.now >= max(heard_at + TOLERANCE, self.leases.owed(node))

    @property
    def leader(self) -> str:
        living = [node for node in self.record.voters if not self.is_dead(node)]
        return next((node for node in living if node not in self.record.finished_nodes), next(iter(living), ""))

    @property
    def leads(self) -> bool:
        return self.leader == self.node

    @cached_property
    def wish(self) -> Round | None:
        """The record that it would propose now. Ask one that is not changed any more."""
        record = self.record
        after = replace(record, version=record.version + 1)
        if self.is_left_alone:
            return replace(after, number=record.number + 1, members=(self.member,), finished=(), retired=())
        if not self.leads:
            return None
        dead = {m.node for m in record.members if self.is_dead(m.node)}
        lost = tuple(m.node for m in record.members if m.node in dead and m.node not in record.finished_nodes)
        back = [
            n
            for n, at in self.heard_at.items()
            if n not in (*record.by_node, WITNESS) and at == self.now and n not in self.gone
        ]
        witness = self._witness()
        if not (lost or back):
            retired = tuple(
                place for place, m in enumerate(record.members) if m.node in dead or place in record.retired
            )
            if (retired, witness) == (record.retired, record.witness):
                return None
            return replace(after, lost=(), witness=witness, retired=retired)
        stay = [m for m in record.members if m.node not in dead]
        return replace(
            after,
            number=record.number + 1,
            members=(*stay, *(member(node) for node in sorted(back))),
            lost=lost,
            witness=witness,
            finished=(),
            retired=(),
        )

    def _witness(self) -> str:
        """The witness that the next record is to name."""
        if self.heard_at.get(WITNESS) == self.now:
            return WITNESS
        return "" if self.is_dead(WITNESS) else self.record.witness

    @property
    def is_left_alone(self) -> bool:
        """Whether all voters of the record have ended, and it is none of them."""
        return not self.record.votes(self.node) and all(node in self.gone for node in self.record.voters)

    # --- what happens to it

    def hear(self, node: str, message: Message, stale: Round | None = None) -> list[do.Effect]:
        """A message arrives. `stale`: what it proposes in the same turn, from the record that it had before."""
        replica, before = self.replica, self.record
        self.heard_at[node] = self.now
        effects: list[do.Effect] = []
        match message:
            case Prepare() | Promise() | Accept() | Accepted() | Refused() | Decided():
                effects += replica.hear(node, message)
                if replica.is_behind(message):
                    effects.append(do.Say(node, self._hello()))
            case Hello() | Witnessed():
                effects += replica.greet(node, message)
                if isinstance(message, Hello) and replica.is_behind(message):
                    effects.append(do.Say(node, self._hello()))
            case Record(round_):
                answer = replica.compare(node, round_)
                effects += answer or []
                if answer is None:
                    replica.read(round_)
            case Beat():
                self.hear_beat(node, message)
            case LastWords():
                if replica.bury(node, message):
                    self.gone |= {node}
                    self.leases.part(node, self.now)
        if self.record is not before:
            effects += replica.show(None)  # it was decided elsewhere: those that follow this agent may not know
        if stale is not None:
            effects += self.propose(stale)
        return [*effects, *self._go_on(before)]

    def hear_beat(self, node: str, beat: Beat) -> None:
        self.heard_at[node] = self.now
        self.leases.heard(node, beat, self.now)
        if self.leads:
            self.leases.lead(self.gone.__contains__, self.now)

    def propose(self, round_: Round) -> list[do.Effect]:
        effects = self.replica.begin(round_) if self.is_left_alone else self.replica.propose(round_)
        self.paused = self.paused or self.replica.short
        return effects

    def _go_on(self, before: Round) -> list[do.Effect]:
        effects = self.replica.advance()
        if self.record is not before:
            self._adopt()
        return [*effects, *self.follow()]

    def _adopt(self) -> None:
        self.leases.join(self.record.voters, self.replica.since, self.now, accepted_by_all=self.replica.accepted_by_all)
        self.paused = False

    def follow(self) -> list[do.Effect]:
        """Say hello to a leader that is another one than before."""
        before, self.following = self.following, self.leader
        if self.following in ("", self.node, before):
            return []
        hello = Hello(Report(self.member, NodeIntent.READY, self.record.id), self.replica.promise_ahead(self.following))
        return [do.Say(self.following, hello)]

    def _hello(self) -> Hello | Witnessed:
        return Hello(Report(self.member, NodeIntent.READY, self.record.id))

    def beat(self, to: str) -> Beat:
        leads = self.leads and self.is_placed
        return self.leases.beat(to, self.now, leads=leads, follows=self.leader == to, asks=False)

    @cached_property
    def key(self) -> int:
        """What it is, for comparing: two agents with the same key do the same. Ask one that is not changed any more."""
        return hash(self._state())

    def _state(self) -> Hashable:
        replica, leases, attempt = self.replica, self.leases, self.replica._attempt
        return (
            self.now,
            self.alive,
            self.paused,
            self.following,
            self.gone,
            tuple(sorted(self.heard_at.items())),
            record_key(replica.record),
            replica._promised,
            replica._accepted_in,
            record_key(replica._accepted),
            replica._accepted_at,
            replica.since,
            tuple(sorted(replica._promised_ahead.items())),
            tuple(sorted((node, message_key(words)) for node, words in replica._last_words.items())),
            tuple(sorted((node, vote[0], record_key(vote[1])) for node, vote in replica._votes_left.items())),
            replica._promises_left,
            replica._named,
            attempt
            and (
                attempt.ballot,
                record_key(attempt.wish),
                attempt.accept is not None,
                tuple(sorted(attempt.answered)),
                attempt.bound and (attempt.bound[0], record_key(attempt.bound[1])),
            ),
            leases._until,
            tuple(sorted(leases._granted.items())),
            tuple(sorted(leases._owed.items())),
            tuple(sorted(leases._heard.items())),
            frozenset(leases._parted),
            frozenset(leases._leading),
            leases._owed_to_leaders,
            leases._lacking,
            tuple(map(record_key, replica._left)),
        )


class Third(Agent):
    """The witness: it has a vote while the record names it, and proposes nothing."""

    def __init__(self, node: str, first: Round) -> None:
        super().__init__(node, first)
        self.witness = Witness(node, 0.0)
        self.replica = self.witness._replica
        self.replica.read(first)

    def copy(self) -> Agent:
        other = super().copy()
        assert isinstance(other, Third)
        other.witness, other.replica._peers = _copied(self.witness), self.replica._peers
        other.witness._replica = other.replica
        return other

    @property
    def leader(self) -> str:
        return ""

    @property
    def wish(self) -> Round | None:  # type: ignore[override]  # it never has one
        return None

    def _hello(self) -> Hello | Witnessed:
        return Witnessed(self.record.id)

    def hear(self, node: str, message: Message, stale: Round | None = None) -> list[do.Effect]:
        return self.witness.observe(saw.Heard(node, message), self.now)


_Part = TypeVar("_Part")


def _copied(part: _Part) -> _Part:
    """A copy of an object that shares nothing with it that is ever changed in place, but for other objects."""
    new = object.__new__(type(part))
    for name, value in vars(part).items():
        kind = type(value)
        vars(new)[name] = kind(value) if kind in (dict, set, list) else value
    return new


def record_key(round_: Round | None) -> Hashable:
    """What it is, for comparing."""
    if round_ is None:
        return None
    what = round_.number, tuple(round_.by_node), round_.finished, round_.retired
    return round_.version, round_.lineage, *what, round_.lost, round_.name, round_.witness


def _of_change(change: Change | None) -> Hashable:
    return change and (record_key(change.round), change.members)


def message_key(message: Message) -> Hashable:
    """What it is, for comparing."""
    match message:
        case Accept(ballot, change, after):
            return ("accept", ballot, _of_change(change), after)
        case Promise(ballot, accepted_in, accepted, after):
            return ("promise", ballot, accepted_in, _of_change(accepted), after)
        case Record(round_, stands):
            return ("record", record_key(round_), stands)
        case LastWords(known, before, promised, accepted_in, accepted):
            return ("words", _of_change(known), before, promised, accepted_in, _of_change(accepted))
        case _:
            return message
