"""What a launcher costs while nothing happens: of a step, and when its workers do nothing."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from signal import SIGCONT, SIGSTOP

from measuring import Record

from bench_suite.courses import PAIR
from bench_suite.etcd import etcd, job_on
from bench_suite.figures_told import STEADY
from bench_suite.job import STEP_S, TRAINERS, Job, Shape, Work
from bench_suite.systems import named
from local_cluster import Step, alive

SETTLE_S = 0.2
STARTED_S = 5.0
"""What a launcher does soon after its start, once, is done by then."""
ONE_OF_TWO = Shape(nodes=2, workers=PAIR.workers)
"""Of which one comes: a node that can only be alone meets nobody in etcd."""


def step(launches: int, turns: int, block_s: float) -> Iterator[Record]:
    """A step of STEP_S of work, under softrun and twice under torchrun, which take turns; a record for each launch.

    All three jobs exist, and all but one are stopped. Each figure has two lists of shares, one for each turn: `over`
    is by how much softrun's is more than torchrun's, `alike` the same of the other torchrun. Whatever that shows is the
    machine's noise. `clock` is a step's time; `processor` the processor time of all processes of the job; `beside` as
    much of that as is not the workers' main threads taking the step: small, and so is its noise.
    """
    work = Work("work", STEP_S, repetitions(STEP_S), checkpoint=False)
    systems = {"softrun": named("softrun"), "torchrun": named("torchrun fastest"), "alike": named("torchrun fastest")}
    for _ in range(launches):
        with ExitStack() as stack:
            jobs = {name: stack.enter_context(system.job(PAIR, work)) for name, system in systems.items()}
            for job in jobs.values():
                job.start(1)
                job.last_node().signal_family(SIGSTOP)
            blocks: dict[str, list[Block]] = {name: [] for name in jobs}
            for turn in range(turns):
                for name in list(blocks) if turn % 2 == 0 else reversed(blocks):
                    blocks[name].append(block(jobs[name], block_s))
        soft, torch, alike = blocks["softrun"], blocks["torchrun"], blocks["alike"]
        yield {
            "measure": "step",
            "system": "softrun",
            "step_s": statistics.median(b.clock_s for b in torch),
            **{f"{figure}_over": more(soft, torch, figure) for figure in STEADY},
            **{f"{figure}_alike": more(alike, torch, figure) for figure in STEADY},
        }


@dataclass(frozen=True)
class Block:
    """Of one step; the processor times are of one worker, with its part of the launcher."""

    clock_s: float
    processor_s: float
    beside_s: float


def more(some: Sequence[Block], others: Sequence[Block], figure: str) -> list[float]:
    """By which share of a step, turn by turn."""
    whole = {"clock": "clock_s", "processor": "processor_s", "beside": "processor_s"}[figure]
    pairs = zip(some, others, strict=True)
    return [(getattr(a, f"{figure}_s") - getattr(b, f"{figure}_s")) / getattr(b, whole) for a, b in pairs]


def block(job: Job, seconds: float) -> Block:
    node = job.last_node()
    node.signal_family(SIGCONT)
    time.sleep(SETTLE_S)
    family = node.family()
    workers = {s.pid for s in job.here.steps()}
    others = [pid for pid in family if pid not in workers]
    began, before = time.monotonic(), sum(map(cpu_seconds, others))
    time.sleep(seconds)
    ended, after = time.monotonic(), sum(map(cpu_seconds, others))
    node.signal_family(SIGSTOP)
    seen = [s for s in job.here.steps() if began < s.mono < ended]
    return block_of(seen, after - before)


def block_of(steps: Sequence[Step], launcher_s: float) -> Block:
    """`launcher_s` is the processor time of all processes except the workers."""
    own = [[s for s in steps if s.pid == pid] for pid in {s.pid for s in steps}]
    between = sum(len(sequence) - 1 for sequence in own)
    launcher_s /= sum(len(sequence) for sequence in own)
    processor_s = sum(sequence[-1].cpu_s - sequence[0].cpu_s for sequence in own) / between
    steps_s = sum(sequence[-1].own_s - sequence[0].own_s for sequence in own) / between
    return Block(
        clock_s=statistics.median(b.mono - a.mono for sequence in own for a, b in pairwise(sequence)),
        processor_s=processor_s + launcher_s,
        beside_s=processor_s - steps_s + launcher_s,
    )


def repetitions(step_s: float) -> int:
    command = [sys.executable, str(TRAINERS / "bench_steps.py"), str(step_s)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def idle(seconds: float) -> Iterator[Record]:
    """A node whose workers step twice a second: the launcher's share of a core and its memory.

    Of softrun on etcd as well, if it is installed. `helpers_…` is of the processes beside it other than workers; their
    memory is what they do not share.
    """
    systems = [named("softrun"), named("torchrun fastest")]
    with ExitStack() as stack:
        work = Work("sleep", 0.5, checkpoint=False)
        jobs = {s.name: stack.enter_context(s.job(PAIR, work)) for s in systems}
        if shutil.which("etcd") is not None:
            server = stack.enter_context(etcd())
            jobs["softrun on etcd"] = stack.enter_context(job_on(server, ONE_OF_TWO, work))
        for job in jobs.values():
            job.start_node(0)
        for job in jobs.values():
            job.wait_for("a step of all", partial(steps_of_the_first_node, job), 120)
        time.sleep(STARTED_S)
        before = {name: {pid: cpu_seconds(pid) for pid in launcher_pids(job)} for name, job in jobs.items()}
        time.sleep(seconds)
        for name in jobs:
            launcher, *helpers = before[name]
            shares = {pid: (cpu_seconds(pid) - was) / seconds for pid, was in before[name].items() if alive(pid)}
            yield {
                "measure": "idle",
                "system": name,
                "core_share": shares[launcher],
                "resident_mib": resident_mib(launcher),
                "helpers_core_share": sum(shares.get(pid, 0) for pid in helpers),
                "helpers_mib": sum(proportional_mib(pid) for pid in helpers if alive(pid)),
            }


def steps_of_the_first_node(job: Job) -> bool | None:
    return len({s.pid for s in job.here.steps()}) == job.shape.workers or None


def launcher_pids(job: Job) -> list[int]:
    """The launcher, then its helpers."""
    workers = {s.pid for s in job.here.steps()}
    return [pid for pid in job.last_node().family() if pid not in workers]


def cpu_seconds(pid: int) -> float:
    """The processor time of all threads of a process; 0 if it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3), which Python has not
    except OSError:
        return 0.0


def resident_mib(pid: int) -> float:
    return kib(Path(f"/proc/{pid}/status").read_text(), "VmRSS:") / 1024


def proportional_mib(pid: int) -> float:
    """Memory that it shares with others is counted in parts."""
    return kib(Path(f"/proc/{pid}/smaps_rollup").read_text(), "Pss:") / 1024


def kib(text: str, name: str) -> int:
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name))
