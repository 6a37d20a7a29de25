"""A job that takes its steps in blocks of live_workers, to which ten faults happen, and whose history is judged.

Faults strike workers in a phase of a block or anywhere, agents, nodes and several at once; nodes come and are told to
leave. Whatever happens, all workers end with the same state, and what they saw is right in the strictest mode.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from local_cluster import Node, send
from softrun.testing import HistoryError, check, gather
from softrun.testing.history import Error, Evicted, Reply
from storm.job import Verdict
from storm.long_job import PATIENCE_S, LongJob

LAYOUTS = ((1, 4), (2, 2), (3, 1))
PHASES = ("begun", "built", "before", "after", "ended")
TIMEOUT_S = 3.0  # of a block


class LiveJob(LongJob):
    """One to three nodes, whose workers record their calls. With odd seeds they take their steps in a Wrapper."""

    NAME = "live"
    KINDS = (
        *("phase",) * 6, "worker", "workers", "all workers", "stop worker", "stop agent", "stop agent", "agent",
        "node", "come", "leave", "leave",
    )  # fmt: skip
    STEPS = (1, 2, 5, 20)

    def begin(self) -> None:
        nodes, self.nproc = self.draw.choice(LAYOUTS)
        self.wrapped = self.verdict.seed % 2 == 1
        self._commit = "durable" if self.verdict.seed % 5 == 4 else "fast"
        self.verdict.what = f"{nodes}x{self.nproc} {self._commit}" + (", wrapped" if self.wrapped else "")
        self.start(nodes)

    def flags(self) -> tuple[str, ...]:
        return (
            "--restart_policy=soft",
            "--worker_failure=replace",
            f"--commit={self._commit}",
            "--rdzv_conf=last_call_timeout=0.5,keep_alive_interval=0.25,keep_alive_max_attempt=4",
        )

    def arguments(self) -> tuple[str, ...]:
        return ()

    def environment(self) -> dict[str, str]:
        return {"BLOCK_TIMEOUT": f"{TIMEOUT_S}", "WRAPPED": "1" if self.wrapped else ""}

    def befall(self, kind: str, one: Node, workers: list[int]) -> None:
        match kind:
            case "phase":
                what = self.draw.choice(("kill", "kill", "raise", "hang"))
                with self.striking(f"{what}-{self.draw.choice(PHASES)}"):
                    pass
            case "workers":
                for pid in self.draw.sample(workers, min(2, len(workers))):
                    send(pid, signal.SIGKILL)
                    time.sleep(self.draw.choice((0.0, 0.005, 0.05)))
            case "stop worker":
                self._stop_for(self.draw.choice((0.05, 0.5, 2.0)), self.draw.choice(workers))
            case "stop agent":
                self._stop_for(self.draw.choice((0.1, 0.9, 2.0, 4.0)), one.process.pid)
            case "agent":
                self._lose(one, lambda: (one.signal(signal.SIGKILL), one.wait()))
            case "node":
                self._lose(one, one.kill)
            case "leave":
                self._lose(one, lambda: (one.signal(signal.SIGTERM), one.wait(PATIENCE_S)))

    def _stop_for(self, seconds: float, pid: int) -> None:
        self.verdict.faults[-1] += f" {seconds:g} s"
        send(pid, signal.SIGSTOP)
        time.sleep(seconds)
        send(pid, signal.SIGCONT)

    def _lose(self, one: Node, how: Callable[[], object]) -> None:
        """One leaves, and another comes; before it does, if no other is left."""
        if len(self.nodes) == 1:
            self.come()
            self.at_work(2)
        how()
        self.nodes.remove(one)
        self.come()

    def judge(self) -> None:
        states = {path.read_text() for path in self.directory.glob("told-*")}
        if not self.verdict.complaints and len(states) != 1:
            self.verdict.complaints.append(f"the workers have ended with {sorted(states)}")
        judge(self.verdict, self.directory)


def judge(verdict: Verdict, directory: Path) -> None:
    """Look at what the workers saw."""
    try:
        history = gather(directory / "history")
        judged = check(history)
    except HistoryError as error:
        verdict.complaints.append(f"{error}")
        return
    if not judged:
        verdict.complaints.append(f"{judged}")
        (directory / "history.json").write_text(history.model_dump_json())
    ends = [event.ok for event in history.events if isinstance(event, (Reply, Error))]
    last = max(event.t for event in history.events)
    evicted = sum(isinstance(event, Evicted) and event.t < last for event in history.events)  # not those at the end
    verdict.tally = {"told of success": ends.count(True), "told of failure": ends.count(False), "evicted": evicted}
