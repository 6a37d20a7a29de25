"""What the next record differs in from the one before: all that its voters must be sent, since they have that one.

Of a world of N nodes that loses one, N are told. With the whole record each time that is O(N²) bytes: 8.7 GB for
10,000 nodes. So it is with last words: all that have lost their leader ask for them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from softrun.agent.errors import ProtocolError
from softrun.agent.protocol.checks import check_round
from softrun.agent.protocol.model import NO_RECORD, Ballot, Change, LastWords, Member, Round

NEW = -1
"""Where a run begins whose members the record before has not."""


def difference(before: Round | None, after: Round) -> Change:
    """Return what `after` differs in from `before`, in bytes that grow with what has changed and not with N.

    From None it differs in everything.
    """
    known = _members(before)
    places = {member.node: place for place, member in enumerate(known)}
    runs: list[tuple[int, int]] = []
    new: list[Member] = []
    for member in after.members:
        place = places.get(member.node, NEW)
        if place == NEW or known[place] != member:
            place = NEW
            new.append(member)
        begin, count = runs[-1] if runs else (NEW, 0)
        if runs and place == (NEW if begin == NEW else begin + count):
            runs[-1] = (begin, count + 1)
        else:
            runs.append((place, 1))
    sent = replace(after, members=tuple(new))
    if before is not None and _is_same_world(before, after, tuple(runs)):
        finished, retired = set(before.finished), set(before.retired)
        sent = replace(
            sent,
            finished=tuple(place for place in after.finished if place not in finished),
            retired=tuple(place for place in after.retired if place not in retired),
        )
    return Change(sent, tuple(runs))


def changed(before: Round | None, change: Change) -> Round | None:
    """Return the record that follows; None if `change` is none of `before`."""
    known = _members(before)
    new = iter(change.round.members)
    members: list[Member] = []
    if any(count < 1 or begin < NEW for begin, count in change.members):
        return None
    if sum(count for _, count in change.members) > len(known) + len(change.round.members):
        return None  # some would be there twice
    for begin, count in change.members:
        some = list(islice(new, count)) if begin == NEW else known[begin : begin + count]
        if len(some) < count:
            return None
        members += some
    if next(new, None) is not None:
        return None
    after = replace(change.round, members=tuple(members))
    if before is not None and _is_same_world(before, after, change.members):
        after = replace(
            after,
            finished=tuple(sorted({*before.finished, *after.finished})),
            retired=tuple(sorted({*before.retired, *after.retired})),
        )
    try:
        check_round(after)
    except ProtocolError:
        return None
    return after


def last_words(
    before: Round | None,
    record: Round | None,
    promised: Ballot | None = None,
    accepted_in: Ballot | None = None,
    accepted: Round | None = None,
) -> LastWords:
    """Return what one that has ended knew, for those that have its record or the one `before`; None: for all."""
    if record is None:
        return LastWords()
    known, names = difference(before, record), before.id if before is not None else NO_RECORD
    if accepted is None:
        return LastWords(known, names, promised)
    return LastWords(known, names, promised, accepted_in, difference(record, accepted))


def _is_same_world(before: Round, after: Round, runs: tuple[tuple[int, int], ...]) -> bool:
    """Whether those that have finished before still have, and the retired still are: they are not sent again."""
    is_whole = runs == ((0, len(before.members)),)
    return is_whole and (after.number, after.phase) == (before.number, before.phase)


def _members(record: Round | None) -> tuple[Member, ...]:
    return record.members if record is not None else ()
