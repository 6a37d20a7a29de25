"""What has become of a member of the record, as far as one agent can tell."""

from __future__ import annotations

from enum import Enum

from softrun.agent.consensus.descent import Kin, kin
from softrun.agent.protocol.model import Member, NodeIntent, Phase, Report, Round


class MemberStatus(Enum):
    """The status of one member of the record, as one agent sees it."""

    STAYS = "stays"
    UNHEARD = "unheard"  # this agent has not heard it yet, and cannot know whether it lives
    DONE = "done"  # finished
    WITHDRAWN = "withdrawn"  # wants to be left out, has become another incarnation, or is in another job
    LOST = "lost"  # dead


def status_of(
    member: Member, report: Report | None, dead: bool, record: Round | None, begins_again: bool = False
) -> MemberStatus:
    """Return the status of a member of this record.

    `report` is its newest, None if it was not heard; `dead`: it is taken for dead; `begins_again`: every new world
    begins all work again, so who has finished in an earlier one is to work in this one.
    """
    if record is not None and member.node in record.finished_nodes:
        return MemberStatus.DONE  # also if nobody who heard it is left
    has_finished = report is not None and report.intent is NodeIntent.FINISHED and report.member.life == member.life
    if report is not None and has_finished and not (begins_again and _is_to_work_again(report, record)):
        return MemberStatus.DONE  # for good, even if its agent goes away later
    if dead:
        return MemberStatus.LOST
    if report is None:
        return MemberStatus.UNHEARD
    if report.member.life != member.life or is_elsewhere(report, record):
        return MemberStatus.WITHDRAWN
    return MemberStatus.STAYS if has_finished or report.intent is NodeIntent.READY else MemberStatus.WITHDRAWN


def _is_to_work_again(report: Report, record: Round | None) -> bool:
    """Return whether a node that has finished did so in a world before this record, which is not about to be over."""
    if record is None or record.preemption is not None:
        return False
    return record.phase is Phase.OPEN or report.told < record.number


def is_elsewhere(report: Report, record: Round | None) -> bool:
    """Return whether a node that was in the job of this record says that it is in another, which goes on beside it."""
    return record is not None and report.known.version > 0 and kin(record, report.known) in (Kin.OTHER, Kin.SPLIT)


def joins(report: Report, record: Round) -> bool:
    """Return whether a node that has no place in this record says that it knows the job, and can be in its next one."""
    return report.known.version > 0 and kin(record, report.known) in (Kin.SAME, Kin.OLDER)


def goes_on(round_: Round, report: Report) -> bool:
    """Return whether a member that stays in `round_` can be in the next world, too, and lead until then."""
    return round_.edition not in (report.yields, report.hands_over)
