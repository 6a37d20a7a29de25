"""How a run should end, by what has struck: the table in `storm`, as functions. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from storm.plan import ENDING, HARD_TIMEOUT_S, LATE, NEWCOMER, SOFT_TIMEOUT_S, Fault, Plan, Slot

LEAVES_ITS_NODE = ("term", "agent", "node")


def is_left_out(fault: Fault) -> bool:
    """Does it never ask for a world? Nobody can tell that from a long start, so it is left alone."""
    return fault.phase == "start" and (fault.kind == "hang" or (fault.kind == "stop" and fault.resumes_s is None))


def fails(fault: Fault, plan: Plan) -> bool:
    """Does its process end by it, as a failure?"""
    if is_left_out(fault):
        return False
    match fault.kind:
        case "exception":
            return _raises_out(fault.phase, plan.family)
        case "hang":
            # The wrapper interrupts a sleep, wherever it restarts; nothing else does.
            wrapped = plan.family in ("wrapper", "callbacks")
            return not wrapped or fault.phase in ("start", "atomic", "health", "finalize", "completion")
        case "stop":
            return fault.resumes_s is None or fault.resumes_s > HARD_TIMEOUT_S
        case _:
            return fault.kind in ENDING


def _raises_out(phase: str, family: str) -> bool:
    """Does nobody catch what is raised there?"""
    match family:
        case "rfc":
            return phase in ("start", "completion")
        case "worlds":
            return True
        case _:
            return phase in ("start", "health", "finalize")


def lost_nodes(struck: Sequence[Fault], plan: Plan) -> set[str]:
    """Nodes that are gone for good."""
    gone = {fault.slot.node for fault in struck if fault.kind in LEAVES_ITS_NODE}
    if plan.max_restarts == 0:
        gone |= {fault.slot.node for fault in struck if fails(fault, plan)}
    return gone


def may_lose_process(struck: Sequence[Fault], plan: Plan) -> set[Slot]:
    """Slots whose process a fault, or the policy's answer to it, may end. All others are healthy."""
    failed = [fault for fault in struck if fails(fault, plan)]
    ended = {fault.slot for fault in (*failed, *(f for f in struck if f.kind == "exit0" or is_left_out(f)))}
    nodes = lost_nodes(struck, plan)
    if plan.policy == "no-replace":
        nodes |= {fault.slot.node for fault in failed}
    return ended | may_come_too_late(struck, plan) | {slot for slot in plan.slots if slot.node in nodes}


def has_finished(node: str, struck: Sequence[Fault], plan: Plan) -> bool:
    """Have all ranks of this node left, or failed for good, and one of them by exit 0?"""
    own = [fault for fault in struck if fault.slot.node == node]
    left = {fault.slot for fault in own if fault.kind == "exit0"}
    gone = {fault.slot for fault in own if plan.policy == "record" and fails(fault, plan)}
    return bool(left) and len(left | gone) == plan.ranks


def a_node_has_finished(struck: Sequence[Fault], plan: Plan) -> bool:
    """Then nobody new is let in."""
    return any(has_finished(node, struck, plan) for node in plan.nodes)


def may_come_too_late(struck: Sequence[Fault], plan: Plan) -> set[Slot]:
    """Slots that the others have gone on without, so that they may come back when the work is done, or a node is."""
    ends = plan.hurries or a_node_has_finished(struck, plan)
    away = [f for f in struck if f.resumes_s is not None and f.resumes_s > SOFT_TIMEOUT_S]
    return {f.slot for f in away if ends or f.phase in LATE}


def must_be_there(struck: Sequence[Fault], plan: Plan) -> set[Slot]:
    """Slots that must have a process at work once the faults are over."""
    slots = set(plan.slots)
    if any(fault.kind == "newcomer" for fault in struck) and not a_node_has_finished(struck, plan):
        slots |= {Slot(NEWCOMER, rank) for rank in range(plan.ranks)}
    left = {fault.slot for fault in struck if fault.kind == "exit0"}
    slots -= {fault.slot for fault in struck if is_left_out(fault)} | may_come_too_late(struck, plan)
    # If one has finished, a failed neighbour need not be started again.
    finished = {slot.node for slot in left}
    failed = {fault.slot for fault in struck if fails(fault, plan)}
    for_good = plan.policy == "record" or a_node_has_finished(struck, plan)
    gone = failed if for_good else {slot for slot in failed if slot.node in finished}
    if plan.policy == "no-replace":
        # Some may have been through when another of their node failed: finished work is not run again.
        gone |= {fault.slot for fault in struck if fails(fault, plan) and fault.phase in LATE}
        gone = {slot for slot in slots if slot.node in {one.node for one in gone}}
    lost = lost_nodes(struck, plan)
    return {slot for slot in slots - left - gone if slot.node not in lost}


def exit_codes(node: str, struck: Sequence[Fault], plan: Plan) -> set[int]:
    """What the launcher of this node may end with."""
    own = [fault for fault in struck if fault.slot.node == node and fault.kind != "newcomer"]
    if any(fault.kind in ("agent", "node") for fault in own):
        return {-9} if not plan.hurries else {-9, 0}
    late = plan.hurries or any(fault.phase in LATE for fault in struck) or a_node_has_finished(struck, plan)
    failed = [fault for fault in own if fails(fault, plan)]
    if any(fault.kind == "term" for fault in own):
        return {0, 1} if late else {1}
    if node == NEWCOMER:
        return {0, 1} if late else {0}
    if failed and plan.policy == "no-replace" and any(fault.kind == "exit0" for fault in own):
        return {0, 1}  # its work is done, or a failure of it: whichever was first
    if failed and late:
        return {0, 1}  # the others may have been done before it could come back
    if failed and plan.max_restarts == 0:
        return {1}
    if _all_have_failed(failed, plan):
        # One that hangs has failed when the hard timeout is over, if the work goes on for so long.
        return {0, 1} if any(fault.kind in ("hang", "stop") for fault in failed) else {1}
    return {0}


def _all_have_failed(failed: Sequence[Fault], plan: Plan) -> bool:
    return plan.policy == "record" and len({fault.slot for fault in failed}) == plan.ranks
