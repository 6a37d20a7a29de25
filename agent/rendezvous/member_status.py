"""What has become of a member of the record, as far as one agent can tell."""

from __future__ import annotations

from enum import Enum

from softrun.agent.protocol.model import Member, NodeIntent, Report, Round


class MemberStatus(Enum):
    """The status of one member of the record, as one agent sees it."""

    STAYS = "stays"
    UNHEARD = "unheard"  # this agent has not heard it yet, and cannot know whether it lives
    DONE = "done"  # finished
    WITHDRAWN = "withdrawn"  # wants to be left out, or has become another incarnation
    LOST = "lost"  # dead


def status_of(member: Member, report: Report | None, dead: bool) -> MemberStatus:
    """Return the status of `member`. `report` is its newest, None if it was not heard; `dead`: it is taken for dead."""
    if report is not None and report.intent is NodeIntent.FINISHED and report.member.life == member.life:
        return MemberStatus.DONE  # for good, even if its agent goes away later
    if dead:
        return MemberStatus.LOST
    if report is None:
        return MemberStatus.UNHEARD
    if report.member.life != member.life or report.intent is not NodeIntent.READY:
        return MemberStatus.WITHDRAWN
    return MemberStatus.STAYS


def goes_on(round_: Round, report: Report) -> bool:
    """Return whether a member that stays in `round_` can be in the next world, too."""
    return not report.leaving and report.yields != round_.version
