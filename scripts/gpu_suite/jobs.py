"""Checks of whole jobs: a fault befalls a rank of a job under softrun, and the others go on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

from measuring import cluster
from one_node import first_of_a_new_process, inject, start_ranks

from gpu_suite.alone import TRAINERS, ended
from gpu_suite.parts import PARTS, parts_of
from gpu_suite.setting import FailedError, Found, Setting, needs_nccl, needs_ranks
from local_cluster import LocalCluster, Step, recovery

KILLS = 5
PRELOAD = ["torch._dynamo", "torch.distributed.fsdp"]
"""What takes seconds to import, and every optimizer or HSDP needs: otherwise a replacement's imports are measured."""


def worlds(setting: Setting) -> Found:
    return recovered(setting, TRAINERS / "gpu_worlds.py", ["kill"])


def ddp(setting: Setting) -> Found:
    return recovered(setting, TRAINERS / "gpu_ddp.py", ["kill"])


def wrapper(setting: Setting) -> Found:
    return recovered(setting, TRAINERS / "gpu_wrapper.py", ["exception", "sleep"])


def hsdp(setting: Setting) -> Found:
    """The example, with two replicas of two shards."""
    needs_ranks(setting, 4)
    return recovered(setting, TRAINERS / "gpu_hsdp.py", ["kill"])


def recovered(setting: Setting, trainer: Path, faults: Sequence[str]) -> Found:
    """One after the other befalls the last rank of a job; then all survivors step, and after a kill a new process."""
    texts, figures = [], {}
    with cluster() as here:
        start_ranks(here, trainer, setting.ranks, [setting.backend, str(here.directory)], PRELOAD)
        for fault in faults:
            steps = here.wait_for_steps(setting.ranks, after=time.monotonic(), each=5, timeout_s=setting.timeout_s)
            found = recovery_from(fault, here, steps, setting.timeout_s)
            texts.append(found.text)
            figures.update(found.figures)
        here.wait_for_steps(setting.ranks, after=time.monotonic(), timeout_s=setting.timeout_s)
    return Found(", ".join(texts), figures)


def recovery_from(fault: str, here: LocalCluster, steps: Sequence[Step], timeout_s: float) -> Found:
    victim, rank = last_rank(steps)
    before = {s.pid for s in steps}
    survivors = before - {victim} if fault == "kill" else before
    at = inject(here, victim, rank, fault)
    texts, figures = [], {}
    if survivors:
        gap = here.wait_for(f"recovery from {fault}", partial(recovered_since, here, at, survivors), timeout_s)
        texts.append(f"after {fault} all that keep their process ({len(survivors)}) step within {gap * 1000:.0f} ms")
        figures[f"after_{fault}_ms"] = 1000 * gap
    if fault == "kill":
        first = here.wait_for("the replacement", lambda: first_of_a_new_process(here.steps(), before), timeout_s)
        texts.append(f"the replacement within {(first.mono - at) * 1000:.0f} ms")
        figures["replaced_ms"] = 1000 * (first.mono - at)
    return Found(", ".join(texts), figures)


def recovered_since(here: LocalCluster, at: float, survivors: set[int]) -> float | None:
    return recovery(here.steps(), at, survivors)


def last_rank(steps: Sequence[Step]) -> tuple[int, int]:
    """Its process, and its number."""
    last = max(reversed(steps), key=lambda step: step.rank)
    return last.pid, last.rank


def times(setting: Setting) -> Found:
    """Of each part of a recovery, from the kill to the last survivor's first step: the medians of five kills."""
    needs_ranks(setting, 2)
    taken = []
    with cluster() as here:
        node = start_ranks(here, TRAINERS / "gpu_worlds.py", setting.ranks, [setting.backend, str(here.directory)])
        for _ in range(KILLS):
            steps = here.wait_for_steps(setting.ranks, after=time.monotonic(), each=5, timeout_s=setting.timeout_s)
            victim, _ = last_rank(steps)
            survivors = {s.pid for s in steps} - {victim}
            began, at = time.time(), inject(here, victim, 0, "kill")
            gap = here.wait_for("recovery", partial(recovered_since, here, at, survivors), setting.timeout_s)
            taken.append(parts_of(began, gap, steps[-1].round, survivors, node.log, here.directory))
    figures = {f"{part}_ms": 1000 * median(each[part] for each in taken) for part in PARTS}
    return Found(", ".join(f"{part} {figures[f'{part}_ms']:.0f} ms" for part in PARTS), figures)


def timeout(setting: Setting) -> Found:
    """A rank leaves the others waiting: they end, as under torchrun, and are replaced."""
    needs_nccl(setting, "gloo raises")
    needs_ranks(setting, 2)
    with cluster() as here:
        start_ranks(here, TRAINERS / "gpu_timeout.py", setting.ranks, [setting.backend, str(here.directory)])
        steps = here.wait_for_steps(setting.ranks, after=time.monotonic(), timeout_s=setting.timeout_s)
        after = partial(steps_of_later_rounds, here, steps[-1].round)
        later = here.wait_for("another world", lambda: len({s.rank for s in after()}) == setting.ranks and after(), 90)
    stuck = max(step.mono for step in here.steps() if step.round == steps[-1].round)
    gap, kept = min(step.mono for step in later) - stuck, {s.pid for s in later} & {s.pid for s in steps}
    text = f"{gap:.0f} s after the last step of all, {setting.ranks - len(kept)} of {setting.ranks} ranks are replaced"
    return Found(text, {"after_timeout_ms": 1000 * gap})


def steps_of_later_rounds(here: LocalCluster, round_: int) -> list[Step]:
    return [step for step in here.steps() if step.round > round_]


def bound(setting: Setting) -> Found:
    """To which device world.process_group binds a group: without being told, and if it is told."""
    needs_nccl(setting, "gloo binds no device")
    texts = []
    for how in ("untold", "told"):
        with cluster() as here:
            node = start_ranks(here, TRAINERS / "gpu_bound.py", setting.ranks, [setting.backend, how])
            rank = ended(node, f"the job, {how}", setting.timeout_s)
        devices = sorted(line.partition("bound to ")[2] for line in rank.output.splitlines() if "bound to " in line)
        if rank.wrong or len(devices) != setting.ranks:
            raise FailedError(rank.wrong or f"{len(devices)} of {setting.ranks} ranks had a group")
        texts.append(f"{how}: {', '.join(devices)}")
    return Found("; ".join(texts))
