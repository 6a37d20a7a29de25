"""One agent's replica beside three others, of which a test says what they are told and answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from values import following, known, member, of_job, ready, sealed, words_of

from softrun.agent.consensus.change import changed, difference
from softrun.agent.consensus.replica import Peers, Replica
from softrun.agent.protocol.effects import Effect, Say
from softrun.agent.protocol.model import (
    NO_RECORD,
    Accept,
    Accepted,
    Agreement,
    Ballot,
    Decided,
    Hello,
    LastWords,
    Member,
    Message,
    Prepare,
    Promise,
    RecordId,
    Refused,
    Round,
)

A, B, C, D = (member(name) for name in "abcd")
JOB = "a@1"
FIRST = of_job(JOB, sealed(A, B, C))  # version 2
FOUR = of_job(JOB, sealed(A, B, C, D))


def after(record: Round, *members: Member, number: int = 2, version: int = 0) -> Round:
    """A next record; `number` tells several of them apart."""
    made = following(record, number=number, members=members)
    return replace(made, version=version) if version else made


@dataclass(frozen=True)
class Ask:
    """An Accept, as tests write it: with the whole record."""

    ballot: Ballot
    round: Round
    after: RecordId = NO_RECORD

    def of(self, before: Round) -> Accept:
        return Accept(self.ballot, difference(before, self.round), self.after if self.after.version else before.id)

    @staticmethod
    def said(accept: Accept, before: Round) -> Ask:
        assert accept.after == before.id
        after = changed(before, accept.change)
        assert after is not None
        return Ask(accept.ballot, after)


@dataclass(frozen=True)
class Vow:
    """A Promise, as tests write it: with the whole record."""

    ballot: Ballot
    accepted_in: Ballot | None = None
    accepted: Round | None = None
    after: RecordId = NO_RECORD

    def of(self, before: Round) -> Promise:
        accepted = difference(before, self.accepted) if self.accepted is not None else None
        return Promise(self.ballot, self.accepted_in, accepted, self.after if self.after.version else before.id)

    @staticmethod
    def said(promise: Promise, before: Round) -> Vow:
        assert promise.after == before.id
        accepted = changed(before, promise.accepted) if promise.accepted is not None else None
        return Vow(promise.ballot, promise.accepted_in, accepted)


Said = list[tuple[str | None, Message | Ask | Vow]]


class Agent:
    """A replica, what its agent knows of the others, and what it says."""

    def __init__(self, node: str, record: Round | None = FIRST) -> None:
        self.node = node
        self.gone: set[str] = set()
        self.silent: set[str] = set()
        self.refusing: set[str] = set()
        self.sure = True
        peers = Peers(
            gone=self.gone.__contains__,
            silent=lambda node: node in self.silent | self.refusing,
            missed=self.silent.__contains__,
            stands=lambda: self.sure,
        )
        self.replica = Replica(node, peers)
        self._records: dict[RecordId, Round] = {}
        if record is not None:
            self.replica.read(record)
            self.replica.take()

    def propose(self, round_: Round) -> Said:
        base = round_.past[0] if round_.past else ""
        return self._said(self._replica.propose(replace(round_, name=base)))  # as the engine does: from that record

    def begin(self, round_: Round) -> Said:
        return self._said(self._replica.begin(round_))

    def hear(self, node: str, message: Agreement | Ask | Vow) -> Said:
        if isinstance(message, Ask | Vow):
            message = message.of(self.record)
        return self._said([*self._replica.hear(node, self._about(message)), *self.replica.advance()])

    def bury(self, *nodes: str, words: LastWords | None = None) -> Said:
        """It hears the last words of these: they knew the record that it knows, and had accepted nothing."""
        for node in nodes:
            self.gone.add(node)
            self._replica.bury(node, words or words_of(self.record))
        return self._said(self.replica.advance())

    def greet(self, node: str, version: int = 0, lineage: str = "", promises: Ballot | None = None) -> Said:
        hello = Hello(ready(member(node), known(version, lineage) if version else NO_RECORD), promises)
        return self._said([*self._replica.greet(node, hello), *self.replica.advance()])

    def _about(self, message: Agreement) -> Agreement:
        """Of its own job, where a test leaves that out."""
        return message if message.after.version else replace(message, after=self.record.id)

    def learn(self) -> Said:
        """What it says when it has learned something of its peers."""
        return self._said(self._replica.advance())

    def compare(self, node: str, round_: Round) -> Said | None:
        answer = self.replica.compare(node, round_)
        return self._said(answer) if answer is not None else None

    @property
    def _replica(self) -> Replica:
        """Before it is told anything: what it says then is about the record that it has now, or the next."""
        if self.replica.record is not None:
            self._records[self.record.id] = self.record
        return self.replica

    @property
    def record(self) -> Round:
        assert self.replica.record is not None
        return self.replica.record

    def _said(self, effects: list[Effect]) -> Said:
        said: Said = []
        for effect in effects:
            assert isinstance(effect, Say)
            match effect.message:
                case Accept() as message:
                    said.append((effect.node, Ask.said(message, self._records[message.after])))
                case Promise() as message:
                    said.append((effect.node, Vow.said(message, self._records[message.after])))
                case Prepare() | Accepted() | Refused() | Decided() as message:
                    assert message.after.version
                    message = replace(message, after=NO_RECORD)  # so that the tests can leave it out
                    if isinstance(message, Decided):
                        message = replace(message, by_proof=False)  # `by_proof` of the record tells
                    said.append((effect.node, message))
                case message:
                    said.append((effect.node, message))
        return said


SECOND = after(FIRST, A, B)
FAST = (0, "a")
