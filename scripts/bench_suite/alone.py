"""What is measured of softrun alone: who survives kills, how soon a worker is told, how quick the simulation is."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from measuring import Record, spread

from bench_suite.courses import NODES
from bench_suite.figures import gap, members
from bench_suite.job import START_TIMEOUT_S, Job
from bench_suite.systems import named

PATIENCE_S = 60.0
EVENTS = 300
SEEDS = 500
SOAK = Path(__file__).parent.parent / "soak"


def survivors(kills: int) -> Iterator[Record]:
    """Nodes are killed one after the other, the oldest but the host of the store first; each is replaced."""
    kept, gaps = 0, []
    with named("softrun").job(NODES) as job:
        job.start(NODES.nodes)
        for kill in range(kills):
            victim = job.nodes.pop(sorted(job.nodes)[1])
            staying = members(job.here.steps()) - set(victim.family())
            at = victim.kill()
            gaps.append(job.next_step(partial(gap_now, job, at), PATIENCE_S))
            job.start_node(NODES.nodes + kill)
            job.wait_for_steps(NODES.all, time.monotonic(), START_TIMEOUT_S)
            same = staying < members(job.here.steps())
            kept += same
            yield {"gap_s": gaps[-1], "kept": same}
    print(
        f"  survivors' process ids unchanged in {kept} of {kills} kills; gap median "
        f"{statistics.median(gaps) * 1000:.0f} ms [{spread(gaps)}]"
    )


def gap_now(job: Job, at: float) -> float | None:
    return gap(job.here.steps(), at, NODES.one_less)


CALLBACK = """
import sys, time, softrun
softrun.on_world_change(lambda event: print(time.monotonic(), flush=True))
print("ready", flush=True)
sys.stdin.read()
"""


def callback() -> Iterator[Record]:
    """From the agent's decision to the worker's callback."""
    from softrun.runtime.channel.channel import ENVIRONMENT_VARIABLE, EventWriter
    from softrun.runtime.events import WorkerEvent, WorkerInfo, WorkerState

    info = WorkerInfo(
        local_rank=0, role_rank=0, rank=0, local_world_size=1, role_world_size=1, world_size=1,
        master_addr="127.0.0.1", master_port=1,
    )  # fmt: skip
    delays = []
    with tempfile.TemporaryDirectory() as directory:
        writer = EventWriter.create(Path(directory) / "channel")
        event = WorkerEvent(timestamp=0, worker_info=info, worker_state=WorkerState.HEALTHY, round=1)
        writer.write(event)
        worker = subprocess.Popen(
            [sys.executable, "-c", CALLBACK],
            env={**os.environ, ENVIRONMENT_VARIABLE: str(writer.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if worker.stdout is None or worker.stdin is None:
            raise AssertionError("asked for pipes")
        worker.stdout.readline()
        for _ in range(EVENTS):
            decided_at = time.monotonic()
            writer.write(event)
            delays.append(float(worker.stdout.readline()) - decided_at)
            time.sleep(0.005)
        worker.stdin.close()
        worker.wait()
    for delay in delays:
        yield {"delay_s": delay}
    p99 = statistics.quantiles(delays, n=100)[98]
    print(f"  decision → worker's callback: median {statistics.median(delays) * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms")


def simulation() -> Iterator[Record]:
    began = time.monotonic()
    subprocess.run([str(SOAK), "--seeds", f"0:{SEEDS}", "--jobs", "2"], check=True)
    taken = time.monotonic() - began
    yield {"seeds": SEEDS, "seconds": taken}
    print(f"  {SEEDS} seeds in {taken:.1f} s on {os.cpu_count()} cores, nothing violated")
