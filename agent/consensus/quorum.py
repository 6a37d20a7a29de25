"""Which members of a record must have accepted its successor.

More than half of them suffice. So does exactly half with the casting vote: the witness has it, or else the first
member. Any two such quorums share a member or the casting vote. With a quorum the others may be left behind, silent as
they are.

If the missing ones are known to be dead the living need no quorum: all of them together know what was accepted, unless
a quorum of the dead agreed on a successor without them. That is certain if the dead are no quorum, or if a lease of
this agent stood when the last of them was seen to be dead (`softrun.agent.consensus.leases`). A witness that has not
answered may have voted with the dead, so it is counted with them. But it never proposes, so no lease is asked of it:
to leave this agent behind a member must have proposed.
"""

from __future__ import annotations

from collections.abc import Collection

from softrun.agent.protocol.model import Round


def is_quorum(round_: Round, nodes: Collection[str]) -> bool:
    """Whether `nodes`, members of `round_` or not, may go on without its other members."""
    present = sum(m.node in nodes for m in round_.members)
    half = 2 * present == len(round_.members)
    return 2 * present > len(round_.members) or (half and present > 0 and _casting_vote(round_) in nodes)


def _casting_vote(round_: Round) -> str:
    return round_.witness or round_.members[0].node
