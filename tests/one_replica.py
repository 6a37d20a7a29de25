"""One agent's replica beside three others, of which a test says what they are told and answer."""

from __future__ import annotations

from dataclasses import replace

from values import member, ready, sealed

from softrun.agent.consensus.replica import Peers, Replica
from softrun.agent.protocol.effects import Effect, Say
from softrun.agent.protocol.model import (
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
FIRST = replace(sealed(A, B, C), lineage=JOB)  # version 2
FOUR = replace(sealed(A, B, C, D), lineage=JOB)


def after(record: Round, *members: Member, number: int = 2, version: int = 0) -> Round:
    """A next record; `number` tells several of them apart."""
    return replace(record, version=version or record.version + 1, number=number, members=members)


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
        return self._said(self.replica.propose(round_))

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
        hello = Hello(ready(member(node)), version, lineage, promises)
        return self._said([*self.replica.greet(node, hello), *self.replica.advance()])

    def _about(self, message: Agreement) -> Agreement:
        """Of its own job, where a test leaves that out."""
        return (
            message if isinstance(message, Accept) or message.lineage else replace(message, lineage=self.record.lineage)
        )

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
            if isinstance(message, Prepare | Promise | Accepted | Refused | Decided):
                assert message.lineage
                message = replace(message, lineage="")  # so that the tests can leave it out: that stands for any job
            said.append((effect.node, message))
        return said


SECOND = after(FIRST, A, B)
FAST = (0, "a")
