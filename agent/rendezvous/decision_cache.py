"""Whether a leader's last decision still stands when another report has arrived.

A decision looks at all N nodes, and N nodes report when a world begins or ends. Without this cache a leader of 10,000
nodes would look at 10,000 nodes 10,000 times. A decision says which reports cannot change it (`Decision`):

    the report is                       and the decision                        it stands
    of a node that has FAILED           is any                                  no
    of another node                     waits to hear from one (`unheard`)        yes
    any, once `missed`                  is any other                            no
    the first of a newcomer, and plain  waits for more nodes (`crowd`)          while fewer than that are heard
    the first of any other node         is any other                            no
    new in `since`, `asks`,
      `never_came`, what leaders say    is any other                            yes
    new in its barrier's answer         waits for another's (`unanswered`)      yes
    new in `heeds`                      is that all is well                     yes
    of a node that has FINISHED         waits for another to (`unfinished`)     yes
    new in anything else                is any other                            no
"""

from __future__ import annotations

from dataclasses import replace

from softrun.agent.protocol.model import NodeIntent, Report
from softrun.agent.rendezvous.decisions import Decision


def stands(decision: Decision, before: Report | None, report: Report, heard: int, missed: bool) -> bool:
    """Return whether it is certain that the leader would decide the same with `report` in the place of `before`.

    `before` is None if the report is the first of its node's life. `heard` counts the nodes that the leader has heard.
    `missed`: one of them has missed a world, or workers that ask for their worlds miss one that never did.
    """
    if report.intent is NodeIntent.FAILED:
        return False
    if decision.unheard and decision.unheard != report.member.node:
        return True
    if missed:
        return False
    if before is None or before.known.lineage != report.known.lineage:
        plain = Report(report.member, NodeIntent.READY, report.known, sequence=report.sequence, told=report.told)
        return report == plain and heard < decision.crowd
    others_owe = decision.unanswered not in ("", report.member.node)
    same = replace(
        before,
        sequence=report.sequence,
        since=report.since,
        barrier_answer=report.barrier_answer if others_owe else before.barrier_answer,
        barrier_request=report.barrier_request,  # what leaders say
        release_edition=report.release_edition,
        expels_leavers=report.expels_leavers,
        asks_promise=report.asks_promise,
        calls=report.calls,  # the leader looks at these by itself
        decides=report.decides,
        promised=report.promised,
        verdicts=report.verdicts,
        asks=report.asks,
        heeds=report.heeds if decision.is_idle and not decision.crowd else before.heeds,
        known=report.known,  # of the same job
        told=report.told,  # only the number of the next world
        never_came=report.never_came,
    )
    others_work = decision.unfinished and report.member.node not in (decision.unfinished, decision.leader)
    if others_work and report.intent is NodeIntent.FINISHED:
        same = replace(same, intent=report.intent, done=report.done, through=report.through)
    return report == same
