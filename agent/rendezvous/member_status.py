"""What has become of a member of the record, as far as one agent can tell."""

from __future__ import annotations

from enum import Enum

from softrun.agent.protocol.model import Member, NodeIntent, Report, Round


class MemberStatus(Enum):
    """The status of one member of the record, as one agent sees it."""

    STAYS = "stays"
    UNHEARD = "unheard"  # this agent has not heard it yet, and cannot know whether it lives
    DONE = "done"  # finished
    WITHDRAWN = "withdrawn"  # wants to be left out, has become another incarnation, or is in another job
    LOST = "lost"  # dead


def status_of(member: Member, report: Report | None, dead: bool, lineage: str) -> MemberStatus:
    """Return the status of a member of the job of this lineage.

    `report` is its newest, None if it was not heard; `dead`: it is taken for dead.
    """
    if report is not None and report.intent is NodeIntent.FINISHED and report.member.life == member.life:
        return MemberStatus.DONE  # for good, even if its agent goes away later
    if dead:
        return MemberStatus.LOST
    if report is None:
        return MemberStatus.UNHEARD
    if report.member.life != member.life or report.intent is not NodeIntent.READY or is_elsewhere(report, lineage):
        return MemberStatus.WITHDRAWN
    return MemberStatus.STAYS


def is_elsewhere(report: Report, lineage: str) -> bool:
    """Return whether a node that was in the job of this lineage says that it is in another, founded beside it."""
    return report.lineage not in ("", lineage)


def goes_on(round_: Round, report: Report) -> bool:
    """Return whether a member that stays in `round_` can be in the next world, too. If all leave, none is special."""
    leaves = report.leaving and round_.preemption is None
    return not leaves and report.yields != round_.edition
