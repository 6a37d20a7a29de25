"""What must hold of every run. Each checker returns what is wrong, one line each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from storm.evidence import Evidence, Line
from storm.expect import exit_codes, may_lose_process, must_be_there
from storm.plan import Slot

LOG_BYTES = 1 << 20
FACTOR, SPARE = 2, 5


def ended_in_time(run: Evidence) -> Iterator[str]:
    if run.overdue:
        yield run.overdue


def exit_codes_are_right(run: Evidence) -> Iterator[str]:
    for node, code in sorted(run.codes.items()):
        allowed = exit_codes(node, run.struck, run.plan)
        if code not in allowed:
            yield f"the launcher of {node} ended with {code}, not {' or '.join(map(str, sorted(allowed)))}"


def work_was_done(run: Evidence) -> Iterator[str]:
    """By somebody, unless nobody is left; and nobody leaves its loop with the work undone."""
    if must_be_there(run.struck, run.plan) and not _of(run, "complete"):
        yield "nobody has completed the work"
    for line in _of(run, "gave up"):
        yield f"{_name(line.slot)} gave up at step {line.step}"


def worlds_are_few(run: Evidence) -> Iterator[str]:
    most = FACTOR * len(run.struck) + SPARE
    if run.rounds > most:
        yield f"{run.rounds} worlds for {len(run.struck)} faults: more than {most}"


def healthy_lost(run: Evidence) -> list[Slot]:
    """Slots of healthy processes that are the same no more, or did not come to the end."""
    excused = may_lose_process(run.struck, run.plan)
    completed = {line.pid for line in _of(run, "complete")}
    entered = {line.slot for line in _of(run, "entered")}
    lost = []
    for slot in run.plan.slots:
        if slot in excused or (run.plan.hurries and slot not in entered):
            continue  # in a hurry, the others may be through before a node has come
        if not (len(pids := _processes(run, slot)) == 1 and pids[0] in completed):
            lost.append(slot)
    return lost


def healthy_live(run: Evidence) -> Iterator[str]:
    for slot in healthy_lost(run):
        pids = _processes(run, slot)
        said = [line for line in run.lines if line.slot == slot]
        seen = f"last seen: {said[-1].what} {said[-1].step or ''}".rstrip() if said else "never seen"
        yield f"{_name(slot)} was healthy and did not keep its process to the end: {len(pids)} processes, {seen}"


def _processes(run: Evidence, slot: Slot) -> list[int]:
    return [line.pid for line in _of(run, "started") if line.slot == slot]


def work_was_done_once(run: Evidence) -> Iterator[str]:
    """Once a rank has completed the work, nobody does earlier steps again. The last one may be: the fault that ended
    it for some may have come after others had it."""
    firsts = _of(run, "complete")
    if not firsts:
        return
    first = min(firsts, key=lambda line: line.mono)
    again = [line for line in _of(run, "step") if line.mono > first.mono and line.step < first.step]
    if again:
        line = again[0]
        yield f"{_name(line.slot)} did step {line.step} again after {_name(first.slot)} had completed {first.step}"


def work_was_exact(run: Evidence) -> Iterator[str]:
    """Each step was taken once: the weight is the sum of what all steps add."""
    for line in _of(run, "corrupt"):
        yield f"{_name(line.slot)} got a wrong sum in step {line.step} of world {line.round}"
    for line in (*_of(run, "step"), *_of(run, "complete")):
        if line.weight != weight_of(line.step):
            yield f"{_name(line.slot)} has weight {line.weight:g} after step {line.step}, not {weight_of(line.step):g}"
            return
    ends = {line.step for line in _of(run, "complete")}
    if len(ends) > 1:
        yield f"ranks completed different steps: {sorted(ends)}"


def weight_of(step: int) -> float:
    """As trainers/storming.py adds."""
    whole, rest = divmod(step, 7)
    return float(whole * 21 + rest * (rest + 1) // 2)


def nothing_is_left(run: Evidence) -> Iterator[str]:
    if run.orphans:
        yield f"{run.orphans} orphans are left"
    if run.left:
        yield f"{len(run.left)} files are left: {', '.join(run.left[:5])}"


def logs_are_short(run: Evidence) -> Iterator[str]:
    for name, size in sorted(run.log_bytes.items()):
        if size >= LOG_BYTES:
            yield f"the log of {name} has {size} bytes"


ALL: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    ended_in_time,
    exit_codes_are_right,
    work_was_done,
    worlds_are_few,
    healthy_live,
    work_was_done_once,
    work_was_exact,
    nothing_is_left,
    logs_are_short,
)


def complaints(run: Evidence) -> list[str]:
    return [complaint for check in ALL for complaint in check(run)]


def _of(run: Evidence, what: str) -> list[Line]:
    return [line for line in run.lines if line.what == what]


def _name(slot: Slot) -> str:
    return f"{slot.node}/{slot.local_rank}"
