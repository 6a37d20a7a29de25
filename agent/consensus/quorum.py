"""Which members of a record must have accepted its successor.

More than half of them suffice. So does exactly half with the casting vote: the witness has it, or else the first
member. Any two such quorums share a member or the casting vote. With a quorum the others may be left behind, silent as
they are.

If the missing ones are known to have ended, the living need no quorum: all of them together, and the last words of the
dead, know what was accepted (`softrun.agent.consensus.replica`).
"""

from __future__ import annotations

from collections.abc import Collection

from softrun.agent.protocol.model import Round


def is_majority(round_: Round, nodes: Collection[str]) -> bool:
    """Whether `nodes` are more than half of the members of `round_`."""
    return 2 * sum(m.node in nodes for m in round_.members) > len(round_.members)


def is_quorum(round_: Round, nodes: Collection[str]) -> bool:
    """Whether `nodes`, members of `round_` or not, may go on without its other members."""
    present = sum(m.node in nodes for m in round_.members)
    half = 2 * present == len(round_.members)
    return is_majority(round_, nodes) or (half and present > 0 and _casting_vote(round_) in nodes)


def _casting_vote(round_: Round) -> str:
    return round_.witness or round_.members[0].node
