"""One agent's replica beside three others, of which a test says what they are told and answer."""

from __future__ import annotations

from dataclasses import replace

from values import following, known, member, of_job, ready, sealed

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
        if record is not None:
            self.replica.read(record)
            self.replica.take()

    def propose(self, round_: Round) -> list[tuple[str | None, Message]]:
        base = round_.past[0] if round_.past else ""
        return self._said(self.replica.propose(replace(round_, name=base)))  # as the engine does: from that record

    def begin(self, round_: Round) -> list[tuple[str | None, Message]]:
        return self._said(self.replica.begin(round_))

    def hear(self, node: str, message: Agreement) -> list[tuple[str | None, Message]]:
        return self._said([*self.replica.hear(node, self._about(message)), *self.replica.advance()])

    def bury(self, *nodes: str, words: LastWords | None = None) -> list[tuple[str | None, Message]]:
        """It hears the last words of these: they knew the record that it knows, and had accepted nothing."""
        for node in nodes:
            self.gone.add(node)
            self.replica.bury(node, words or LastWords(self.record))
        return self._said(self.replica.advance())

    def greet(
        self, node: str, version: int = 0, lineage: str = "", promises: Ballot | None = None
    ) -> list[tuple[str | None, Message]]:
        hello = Hello(ready(member(node), known(version, lineage) if version else NO_RECORD), promises)
        return self._said([*self.replica.greet(node, hello), *self.replica.advance()])

    def _about(self, message: Agreement) -> Agreement:
        """Of its own job, where a test leaves that out."""
        return message if message.after.version else replace(message, after=self.record.id)

    def learn(self) -> list[tuple[str | None, Message]]:
        """What it says when it has learned something of its peers."""
        return self._said(self.replica.advance())

    def compare(self, node: str, round_: Round) -> list[tuple[str | None, Message]] | None:
        answer = self.replica.compare(node, round_)
        return self._said(answer) if answer is not None else None

    @property
    def record(self) -> Round:
        assert self.replica.record is not None
        return self.replica.record

    @staticmethod
    def _said(effects: list[Effect]) -> list[tuple[str | None, Message]]:
        said: list[tuple[str | None, Message]] = []
        for effect in effects:
            assert isinstance(effect, Say)
            message = effect.message
            if isinstance(message, Prepare | Promise | Accept | Accepted | Refused | Decided):
                assert message.after.version
                message = replace(message, after=NO_RECORD)  # so that the tests can leave it out
            if isinstance(message, Decided):
                message = replace(message, by_proof=False)  # `by_proof` of the record tells
            said.append((effect.node, message))
        return said


SECOND = after(FIRST, A, B)
FAST = (0, "a")
