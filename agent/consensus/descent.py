"""How two records are related: whether one follows the other, or one job has become two.

Each record has a name that no other has, and knows the names of those before it. So two agents see at once, whatever
the versions say, that their records contradict each other. That must not happen, and does if a proof of death was
false, if a clock stood still, or if a host was set back to an older state: the agents then vote on what they know, but
never mix the two, since a vote names the record that it is about.

A record knows the last few names. An agent remembers more (`Ancestry`), and tells whom it finds apart from its job.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from itertools import islice

from softrun.agent.protocol.model import RecordId, Round

IN_RECORD = 16
"""How many names of those before it a record has, and how many of those that less than a quorum has made."""
REMEMBERED = 4096
"""How many an agent remembers."""


class Kin(Enum):
    """What another record is to one's own."""

    SAME = auto()
    NEWER = auto()  # it follows one's own
    OLDER = auto()  # one's own follows it
    SPLIT = auto()  # both follow one that they have in common, and neither the other
    OTHER = auto()  # it is of another job


class Ancestry:
    """A record and those before it, by name, as far as one agent knows."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}  # by version, in order
        self._own: Round | None = None

    def adopt(self, round_: Round) -> None:
        """The agent goes on from this record."""
        before = self._own
        if before is None or kin_of(before, round_) is not Kin.NEWER:
            self._names = {}
        self._own = round_
        for version, name in reversed([*_names(round_)]):
            self._names[version] = name
        for version in [*islice(self._names, max(0, len(self._names) - REMEMBERED))]:
            del self._names[version]

    def kin(self, other: RecordId, past: tuple[str, ...] = ()) -> Kin:
        """Return what `other` is to the record. `past`: as in `Round`."""
        if self._own is None:
            return Kin.OTHER
        known = kin(self._own, other, past)
        name = self._names.get(other.version, "")
        if known is Kin.OLDER and other.version and name:
            return Kin.OLDER if name == other.name else Kin.SPLIT
        return known


def kin(own: Round, other: RecordId, past: tuple[str, ...] = ()) -> Kin:
    """Return what `other` is to `own`. `past`: as in `Round`; without it an older one is told for sure, a newer not."""
    if not other.version:
        return Kin.OLDER
    if other.name == own.name:
        return Kin.SAME
    if other.name in own.past:
        return Kin.OLDER
    if own.name in past:
        return Kin.NEWER
    if other.lineage != own.lineage:
        return Kin.OTHER
    ahead = other.version - own.version
    if ahead > 0:
        return Kin.SPLIT if ahead <= len(past) else Kin.NEWER
    return Kin.SPLIT if -ahead <= len(own.past) else Kin.OLDER


def kin_of(own: Round, other: Round) -> Kin:
    """Return what `other` is to `own`."""
    return kin(own, other.id, other.past)


def the_quorum(one: Round, other: Round) -> Round | None:
    """Return the one of two that split that a quorum of the last record before that went on with; None: not known.

    A record that less than a quorum has made is known as such to all that follow it. So the first that only one of the
    two follows was made where they split, or both were made by a quorum there, which cannot be.
    """
    names = {one.lineage, one.split_from} & {other.lineage, other.split_from} - {""}
    if not names:
        return None  # they were never one
    since = max((min(each.by_proof)[0] for each in (one, other) if len(each.by_proof) == IN_RECORD), default=0)
    apart = {
        made: each
        for each, another in ((one, other), (other, one))
        for made in each.by_proof
        if made not in another.by_proof and made[0] >= since and made[1] not in another.past
    }
    first = min(apart, default=None)
    if first is None or sum(version == first[0] for version, _ in apart) > 1:
        return None
    return other if apart[first] is one else one


def names_before(record: Round) -> tuple[str, ...]:
    """Return the past of a record that follows this one."""
    return (record.name, *record.past[: IN_RECORD - 1])


def _names(record: Round) -> Iterator[tuple[int, str]]:
    """The names of a record and of those before it, and their versions, the newest first."""
    for back, name in enumerate((record.name, *record.past)):
        yield record.version - back, name
