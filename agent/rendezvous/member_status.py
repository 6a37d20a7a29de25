"""What became of a member of the record, as far as one agent can tell."""

from __future__ import annotations

from enum import Enum

from softrun.agent.protocol.model import Member, NodeIntent, Report, Round


class MemberStatus(Enum):
    """Of one member of the record, as one agent sees it."""

    STAYS = "stays"
    UNHEARD = "unheard"  # not heard of since this agent began to ask; nobody knows whether it lives
    DONE = "done"  # finished
    WITHDRAWN = "withdrawn"  # wants out, or has become another incarnation
    LOST = "lost"  # dead


def status_of(member: Member, report: Report | None, dead: bool) -> MemberStatus:
    """From its newest report, None if it was not heard, and from whether it is taken for dead."""
    if report is not None and report.intent is NodeIntent.FINISHED and report.member.life == member.life:
        return MemberStatus.DONE  # and stays so: that its agent goes away later takes nothing from it
    if dead:
        return MemberStatus.LOST
    if report is None:
        return MemberStatus.UNHEARD
    if report.member.life != member.life or report.intent is not NodeIntent.READY:
        return MemberStatus.WITHDRAWN
    return MemberStatus.STAYS


def goes_on(round_: Round, report: Report) -> bool:
    """Can a member that stays be in the next world, too?"""
    return not report.leaving and report.yields != round_.version
