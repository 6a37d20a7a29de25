"""Which members of a record must have accepted its successor.

More than half of them suffice. So does exactly half with the casting vote: the witness has it, or else the first
member. Any two such quorums share a voter. With a quorum the others may be left behind, silent as they are.

Members that are known to have ended are not counted: their last words tell what they had promised and accepted, and
they vote no more (`softrun.agent.consensus.replica`). Two proposers may know of different ends, E and F. Say that the
second one, in a higher ballot, misses what the first has decided. Then nobody who accepted that is in F, or the last
words would have told; and nobody who promised the second one is in E, or the last words would have stopped the first
one's lower ballot. So both are quorums of the members in neither E nor F, and share a voter after all.
"""

from __future__ import annotations

from collections.abc import Collection

from softrun.agent.protocol.model import Round


def is_majority(round_: Round, nodes: Collection[str], ended: Collection[str] = ()) -> bool:
    """Whether `nodes` are more than half of the members of `round_`, but for those that have `ended`."""
    members = _but_for(ended, round_)
    return 2 * sum(node in nodes for node in members) > len(members)


def is_quorum(round_: Round, nodes: Collection[str], ended: Collection[str] = ()) -> bool:
    """Whether `nodes`, members of `round_` or not, may go on without its other members."""
    members = _but_for(ended, round_)
    present = sum(node in nodes for node in members)
    if present == 0 or 2 * present < len(members):
        return False
    return 2 * present > len(members) or (round_.witness or members[0]) in nodes


def _but_for(ended: Collection[str], round_: Round) -> list[str]:
    return [member.node for member in round_.members if member.node not in ended]
