"""The leader's link to the job's witness: it looks for it, beats with it, and says which witness the record is to name.

The leader alone dials the witness. If it is not there, it is looked for every now and then, and the job goes on as one
without a witness. A witness that falls silent is taken out of the record: otherwise half of a world could not go on,
not even with its first member. `softrun.agent.consensus.witness` is the other end.
"""

from __future__ import annotations

from math import inf

from softrun.agent.consensus.descent import Kin, kin
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.effects import Effect
from softrun.agent.protocol.model import Address, Beat, Record, RecordId, Round, Witnessed

GIVE_UP_S = 1.0
URGENT_S = 0.15  # between two looks while the record names a witness that may still answer
FIRST_LOOK_S, LAST_LOOK_S = 1.0, 10.0  # between two looks else: each time twice as long
STRANGER_S = 60.0  # at most, if another program answers: both ends may log each look
WARNS_AFTER = 3  # looks that found nothing
WITHOUT_IT = "until it answers the job goes on as one without a witness"


class WitnessLink:
    """One agent's end of it. `address` is where the witness listens; None: the job has none. Times are the engine's."""

    def __init__(self, address: Address | None, interval_s: float, tolerance_s: float) -> None:
        self.address = address
        self._interval_s = interval_s
        self._tolerance_s = tolerance_s
        self._leads = False
        self._node = ""  # who answers there
        self._known: RecordId | None = None  # the record that it holds; None: it has not said yet
        self._heard_at = -inf
        self._beat_at = -inf
        self._met_at = -inf  # when the link came up
        self._absent_since = -inf
        self._refused = False  # its host says that nobody listens there
        self._look_at: float | None = None  # None: a look is under way
        self._look_s = FIRST_LOOK_S
        self._failed = 0  # looks since it was there last
        self._is_named = False  # the record has a witness
        self._last_look = inf

    # --- what is seen

    def look(self, now: float) -> None:
        """Call first at every observation: an agent that was itself away cannot tell that from the other's silence."""
        if now - self._last_look > 2 * self._interval_s:
            self._heard_at = self._absent_since = now
        self._last_look = now

    def looked(self, seen: saw.Found | saw.NotFound, record: Round | None, stands: bool, now: float) -> list[Effect]:
        """Take in what is at the witness's address. Returns what to say there."""
        if isinstance(seen, saw.NotFound):
            self._refused = seen.refused
            return self._not_found(seen.stranger, now)
        if record is not None and seen.node in record.by_node:
            return self._not_found("a node of this job", now)
        if not self._leads or record is None:
            return [do.HangUp(seen.node)]  # another agent leads by now
        self._node, self._known, self._refused = seen.node, None, False
        self._heard_at = self._met_at = now
        self._beat_at = now + self._interval_s
        return [do.Say(self._node, Record(record, stands)), do.Say(self._node, Beat(now, asks=True))]

    def heard(self, node: str, said: Witnessed, record: Round | None, now: float) -> list[Effect]:
        """Take in what the witness says. Returns what it is told because of that; show it what it lacks before."""
        if node != self._node or record is None:
            return []
        first, self._known = self._known is None, said.known
        self._heard_at = now
        if self._serves_another(record):
            return [
                do.Note(f"the witness at {self._where} serves another job of this name: this one goes on without it"),
                *self._lose(now),
            ]
        if first or self._failed:
            self._failed = 0
            return [do.Note(f"the witness at {self._where} answers")]
        return []

    def lost(self, node: str, refused: bool, now: float) -> list[Effect]:
        """A link with `node` is lost; `refused`: nobody listens there any more."""
        if node != self._node:
            return []
        self._refused = refused
        self._lose(now)  # and there is nothing left to hang up
        return [do.Note(f"the witness at {self._where} has ended: {WITHOUT_IT}", warning=True)] if refused else []

    def _not_found(self, stranger: str, now: float) -> list[Effect]:
        self._failed += 1
        self._put_off(now, STRANGER_S if stranger else LAST_LOOK_S)
        if self._failed != WARNS_AFTER or not self._leads:
            return []
        return [
            do.Note(
                f"{stranger or 'nobody'} answers at {self._where}, the witness's place: start `softrun witness` "
                f"there, or correct --rdzv_conf witness; {WITHOUT_IT}",
                warning=True,
            )
        ]

    def _lose(self, now: float) -> list[Effect]:
        node, self._node, self._known = self._node, "", None
        self._absent_since = self._heard_at
        if now - self._met_at >= LAST_LOOK_S:
            self._look_s = FIRST_LOOK_S
        self._put_off(now)
        return [do.HangUp(node)]

    def _put_off(self, now: float, most_s: float = LAST_LOOK_S) -> None:
        self._look_at = now + self._look_s
        if not self._is_named:  # else its vote may be needed
            self._look_s = min(2 * self._look_s, most_s)

    # --- what follows

    def _serves_another(self, record: Round) -> bool:
        return self._known is not None and kin(record, self._known) in (Kin.OTHER, Kin.SPLIT)

    def is_out(self, node: str, now: float) -> bool:
        """Whether the vote of `node`, a witness, cannot be had."""
        if not self._leads:
            return True
        if node == self._node:
            return False
        return self._node != "" or self._refused or now >= self._absent_since + self._tolerance_s

    def is_awaited(self, record: Round | None, now: float) -> bool:
        """Whether the witness of this record may answer soon, so that it can be told of the end of the job."""
        if record is None or record.witness in ("", self._node):
            return False
        return not self.is_out(record.witness, now)

    def take_leave(self, last: Round) -> list[Effect]:
        """Tell the witness of the last record of the job, which it may have no vote on."""
        return [do.Say(self._node, Record(last, stands=True))] if self._node else []

    def choice(self, record: Round | None, now: float) -> str:
        """Return the witness that the next record is to name; "": none."""
        if record is None:
            return ""
        if self._node and self._known is not None and self._known.version and not self._serves_another(record):
            return self._node
        return "" if self._leads and self.is_out(record.witness, now) else record.witness

    def advance(self, record: Round | None, leads: bool, now: float) -> list[Effect]:
        """Return the looks and beats that are due. `leads`: this agent leads the job."""
        if self.address is None:
            return []
        if not leads or record is None:
            return self._stand_down()
        self._is_named = record.witness != ""
        if not self._leads:
            self._leads, self._absent_since = True, now
            self._look_at, self._look_s, self._failed = now, FIRST_LOOK_S, 0
        if self._node and now >= self._heard_at + self._tolerance_s:
            return [
                do.Note(f"the witness at {self._where} has fallen silent: {WITHOUT_IT}", warning=True),
                *self._lose(now),
            ]
        if self._node and now >= self._beat_at:
            self._beat_at = now + self._interval_s
            return [do.Say(self._node, Beat(now, asks=True))]
        if not self._node and self._look_at is not None:
            if self._is_named and not self.is_out(record.witness, now):
                self._look_at = min(self._look_at, now + URGENT_S)
            if now >= self._look_at:
                self._look_at = None
                return [do.Seek(self.address, GIVE_UP_S, listens=False)]
        return []

    def _stand_down(self) -> list[Effect]:
        node, self._node, self._leads, self._known = self._node, "", False, None
        return [do.HangUp(node)] if node else []

    def deadline(self) -> float | None:
        """When `advance` must be called without any news."""
        if not self._leads:
            return None
        if self._node:
            return min(self._beat_at, self._heard_at + self._tolerance_s)
        return self._look_at

    @property
    def _where(self) -> str:
        return str(self.address or "no address")
