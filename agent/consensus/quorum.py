"""Which voters of a record must have accepted its successor: its members, but for those that are retired.

More than half of them suffice. So does exactly half with the casting vote: the witness has it, or else the first
voter. Any two such quorums share a voter. With a quorum the others may be left behind, silent as they are.

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
    """Whether `nodes` are more than half of the voters of `round_`, but for those that have `ended`."""
    voters = _but_for(ended, round_)
    return 2 * sum(node in nodes for node in voters) > len(voters)


def is_quorum(round_: Round, nodes: Collection[str], ended: Collection[str] = ()) -> bool:
    """Whether `nodes`, members of `round_` or not, may go on without its other members."""
    voters = _but_for(ended, round_)
    present = sum(node in nodes for node in voters)
    if present == 0 or 2 * present < len(voters):
        return False
    return 2 * present > len(voters) or (round_.witness or voters[0]) in nodes


def _but_for(ended: Collection[str], round_: Round) -> list[str]:
    return [node for node in round_.voters if node not in ended]
