"""Before a world ends in which calls of live_workers are made: what has been decided there, and who must say so.

A verdict that some node has delivered, and the record does not know, would be a verdict for some and none for others.
So whoever ends the world knows the last one. It does if it has made all of them itself; otherwise it asks all nodes
that it hears, and each promises to deliver nothing more (`softrun.agent.live.live_calls`). Those that it does not hear
are not in the next world, and what they go on to believe is void. But one that was only refused may deliver something
yet: until it is missed as well, its lease may stand.
"""

from __future__ import annotations

from softrun.agent.protocol.live import Scope, Verdict
from softrun.agent.protocol.model import NodeIntent, Phase, Report, Round


def needed(round_: Round, proposal: Round, reports: dict[str, Report]) -> bool:
    """Whether `proposal` ends the world of `round_`, and calls are made there or in the one before it.

    A world that ends after an agreed step goes on until then, if its coordinator stays.
    """
    if round_.phase is not Phase.SEALED or proposal.is_last:
        return False
    if proposal.phase is Phase.SEALED:
        agreed = proposal.leave_after and proposal.members[0].node == round_.members[0].node
        if agreed or proposal.number == round_.number:
            return False
    return any(report.calls >= max(1, round_.number - 1) for report in reports.values())


def owing(round_: Round, reports: dict[str, Report], dead: set[str], refused: set[str], leader: str) -> set[str]:
    """Return the nodes that have yet to promise. The leader must in any case; alone, if it has decided everything.

    `refused`: those of the dead of which nothing else is known.
    """
    asked, own = {leader}, reports.get(leader)
    if own is None or own.decides < round_.number:
        asked |= {m.node for m in round_.members if m.node in reports and m.node not in dead} | refused
    return {node for node in asked if not _has_promised(round_, reports.get(node))}


def _has_promised(round_: Round, report: Report | None) -> bool:
    return report is not None and (report.promised == round_.edition or report.ends)


def verdicts(round_: Round, reports: dict[str, Report]) -> tuple[Verdict, ...]:
    """Return the last verdict of each scope in the worlds that end."""
    last: dict[tuple[int, Scope], Verdict] = {}
    for member in round_.members:
        report = reports.get(member.node)
        if report is None or not (report.promised == round_.edition or report.intent is not NodeIntent.READY):
            continue
        for verdict in report.verdicts:
            key = (verdict.epoch, verdict.scope)
            if key not in last or last[key].turn < verdict.turn:
                last[key] = verdict
    return tuple(last[key] for key in sorted(last))
