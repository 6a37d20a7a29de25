"""The witness: a third party that holds the record and votes on the next one, so that half of a world may go on.

A job of two cannot tell the silence of its first host from a cut between the two: one of them may go on, and by the
rule of `softrun.agent.consensus.quorum` that is the first. A witness has the casting vote instead, so the half that
reaches it goes on. It runs on a further host as a process of its own, is no node of the job, and never proposes.

    leader  → witness  Record, then Beat again and again
    witness → leader   Witnessed(which record it holds)    in answer to each
    leader  → witness  Prepare, Accept, Decided            as to the members (`softrun.agent.consensus.replica`)
    witness → leader   Promise, Accepted

    founder → witness  Hello                               before it founds a job (`softrun.agent.consensus.inquiry`)
    witness → founder  Record of the job that it serves, Witnessed

The leader dials it (`softrun.agent.consensus.witness_link`) and puts it into the record: only a witness that the record
names has a vote on its successor. One that was started again has another name, so it is another witness, which cannot
vote on what it has forgotten.

Leases (`softrun.agent.consensus.leases`) do not include it. To leave a member behind another member must propose, and
that one grants leases.

It serves one job at a time, of those with its id: the one that it was shown first, until that is over or given up or
none of its agents has spoken for a while. Agents of another one are told so and go on without it.
"""

from __future__ import annotations

from softrun.agent.consensus.descent import Kin, kin
from softrun.agent.consensus.replica import Peers, Replica
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.effects import Effect, Outbox, Outcome, Result
from softrun.agent.protocol.model import (
    Accept,
    Accepted,
    Agreement,
    Beat,
    Decided,
    Hello,
    Message,
    Phase,
    Prepare,
    Promise,
    Record,
    RecordId,
    Refused,
    Round,
    Witnessed,
)

FORGET_S = 30.0
"""How long it keeps to a job whose agents do not speak, if others with the same id ask; longer if they wait longer."""
_TOLERANCES = 4  # that are waited for at least

_ALONE = Peers(gone=lambda _: False, silent=lambda _: False, missed=lambda _: False, stands=lambda: False)
"""It proposes nothing, so it need not know who lives."""


class Witness:
    """What one witness decides. Call `observe` with each observation; `now` never falls. It wants no ticks."""

    def __init__(self, node: str, now: float) -> None:
        self._node = node
        self._replica = Replica(node, _ALONE)
        self._leader = ""  # who led its job last, as far as it knows
        self._heard_at = now  # when that one spoke
        self._now = now

    @property
    def record(self) -> Round | None:
        """The newest record that it knows."""
        return self._replica.record

    def observe(self, seen: saw.Observation, now: float) -> list[Effect]:
        """Take one observation in; returns what to do about it, in order."""
        self._now = now
        effects = Outbox()
        if isinstance(seen, saw.Heard):
            before = self.record
            effects += self._heard(seen.node, seen.message)
            round_ = self._replica.take()
            if round_ is not None:
                self._tell(effects, before, round_)
        return list(effects)

    def _heard(self, node: str, message: Message) -> list[Effect]:
        match message:
            case Record(round_):
                return [*self._shown(node, round_), self._witnessed(node)]
            case Beat():
                if node == self._leader:
                    self._heard_at = self._now
                return [self._witnessed(node)]
            case Hello():
                own = self.record
                if own is not None and not self._is_of(message.known) and self._is_free(own):
                    return [do.Say(node, Witnessed())]  # as far as it knows that job is no more
                return [*self._replica.greet(node, message), self._witnessed(node)]
            case Prepare() | Promise() | Accept() | Accepted() | Refused() | Decided():
                return self._asked(node, message)
            case _:
                return []

    def _shown(self, node: str, round_: Round) -> list[Effect]:
        own = self.record
        if own is None and round_.is_last:
            return []  # of a job that is over already
        if own is not None and not self._is_of(round_.id, round_.past) and not self._is_free(own):
            return []
        answer = self._replica.compare(node, round_)
        if answer is None:
            self._replica.read(round_)
        if self._is_of(round_.id):
            self._follow(node)
        return answer or []

    def _asked(self, node: str, message: Agreement) -> list[Effect]:
        if self._is_of(message.after):
            self._follow(node)
        effects = self._replica.hear(node, message)
        return [*effects, self._witnessed(node)] if self._replica.is_behind(message) else effects

    def _is_of(self, known: RecordId, past: tuple[str, ...] = ()) -> bool:
        """Whether that is a record of the job that it serves."""
        own = self.record
        return own is not None and known.version > 0 and kin(own, known, past) not in (Kin.OTHER, Kin.SPLIT)

    def _follow(self, leader: str) -> None:
        self._leader, self._heard_at = leader, self._now

    def _is_free(self, own: Round) -> bool:
        """Whether it may turn to another job."""
        return own.is_last or self._now - self._heard_at >= max(FORGET_S, _TOLERANCES * own.settings.tolerance_s)

    def _witnessed(self, node: str) -> Effect:
        record = self.record
        return do.Say(node, Witnessed(record.id) if record is not None else Witnessed())

    def _tell(self, effects: Outbox, before: Round | None, round_: Round) -> None:
        voted = before is not None and before.witness == self._node
        votes = round_.witness == self._node
        if round_.phase is Phase.CLOSED:
            effects.append(do.End(Result(Outcome.SUCCEEDED, round_.outcome)))
        elif votes != voted:
            nodes = ", ".join(member.node for member in round_.members)
            effects.note(f"it has the casting vote of {nodes}" if votes else "it has no vote any more")
