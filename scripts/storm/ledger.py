"""A job to which ten faults happen, and whose ledger shows that each sample was trained on by one committed step.

Faults strike workers in a phase of a step, all workers, nodes, keepers of snapshots and the whole job; nodes come and
are told to leave, and the job is told to end and started again. What a step took that was taken back, because its state
was lost, does not count: of each step, the last time that it was committed does.
"""

from __future__ import annotations

import json
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from local_cluster import Node, send, shown_by
from storm.long_job import PATIENCE_S, LongJob

RESUME = 75
LENGTH, BATCH = 203, 12
PHASES = (
    "built", "synced", "healing", "fetched", "forward", "backward", "reduced", "stepped", "committed", "kept", "saved",
)  # fmt: skip
OF_A_WORLD = ("built", "synced", "healing")
"""The phases that a worker comes to in a new world only, or if it is a newcomer."""

Line = dict[str, Any]


class LedgerJob(LongJob):
    """Two workers on each node, which write down what they take and what they commit."""

    NAME = "ledger"
    KINDS = (
        *("phase",) * 6, "worker", "worker", "all workers", "node", "keeper", "come", "leave", "end", "end", "crash",
    )  # fmt: skip
    STEPS = (1, 2, 5, 9)

    def begin(self) -> None:
        self._policy = self.draw.choice(("soft", "soft", "hard"))
        self._failure = self.draw.choice(("replace", "no-replace"))
        self._loaders = self.draw.choice((0, 0, 0, 1))
        self.verdict.what = self._policy
        self.verdict.tally = {"ends resumed": 0}
        self.start(2)

    def flags(self) -> tuple[str, ...]:
        return (
            f"--restart_policy={self._policy}",
            *((f"--worker_failure={self._failure}",) if self._policy == "soft" else ()),
            "--rdzv_conf=last_call_timeout=0.5",
            "--preload=torch._dynamo,torch.distributed.checkpoint",
        )

    def arguments(self) -> tuple[str, ...]:
        return str(LENGTH), str(BATCH), str(self._loaders)

    def environment(self) -> dict[str, str]:
        return {"LEDGER_RUN": str(self.runs - 1)}

    def befall(self, kind: str, one: Node, workers: list[int]) -> None:
        match kind:
            case "phase":
                phase = self.draw.choice(PHASES)
                with self.striking(f"kill-{phase}"):
                    if phase in OF_A_WORLD:
                        send(self.draw.choice(workers), signal.SIGKILL)
            case "keeper":
                for pid in one.family():
                    if "keeper_main" in shown_by(pid):
                        send(pid, signal.SIGKILL)
            case "node":
                one.kill()
                self._lose(one)
            case "leave":
                one.signal(signal.SIGTERM)
                one.wait()
                self._lose(one)
            case "end":
                self._end()
            case "crash":
                for node in self.nodes:
                    node.kill()
                self.start(2)

    def _lose(self, node: Node) -> None:
        """It is gone, and another comes."""
        self.nodes.remove(node)
        if self.nodes:
            self.come()
        else:
            self.start(2)

    def _end(self) -> None:
        """The whole job is told to end, each node at a time of its own, and is started again."""
        nodes = self.draw.sample(self.nodes, len(self.nodes))
        for node in nodes:
            node.signal(signal.SIGTERM)
            time.sleep(self.draw.choice((0.0, 0.02, 0.1)))
        codes = [node.wait(PATIENCE_S) for node in nodes]
        assert set(codes) == {RESUME}, f"told to end, the nodes have exited with {codes}"
        self.verdict.tally["ends resumed"] += 1
        self.start(len(nodes))

    def judge(self) -> None:
        self.verdict.complaints += complaints(self.directory)
        self.verdict.tally["steps"] = max((line["step"] for line in entries(self.directory)), default=0)


# --- what the ledger says


def entries(ledger: Path) -> Iterator[Line]:
    """All lines of all workers; one that was killed may have left a line unfinished."""
    for path in ledger.glob("*.jsonl"):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def complaints(ledger: Path, length: int = LENGTH) -> list[str]:
    """What is wrong with it, in a line each."""
    lines = list(entries(ledger))
    last: dict[int, tuple[int, int]] = {}
    for line in lines:
        if line["what"] == "commits":
            last[line["step"]] = max(last.get(line["step"], (0, 0)), (line["run"], line["round"]))
    samples: dict[int, list[int]] = defaultdict(list)
    for line in lines:
        if line["what"] == "takes" and (line["run"], line["round"]) == last.get(line["step"]):
            samples[line["epoch"]] += line["samples"]
    said = [f"step {step} was never committed" for step in range(max(last, default=-1)) if step not in last]
    for epoch in sorted(samples)[:-1]:
        said += _differences(epoch, samples[epoch], length)
    return [*said, *_repeated(lines)]


def _differences(epoch: int, taken: list[int], length: int) -> list[str]:
    lost = sorted(set(range(length)) - set(taken))
    twice = sorted({sample for sample in taken if taken.count(sample) > 1})
    said = [f"epoch {epoch}: never trained on: {lost[:9]}"] if lost else []
    return said + ([f"epoch {epoch}: trained on twice: {twice[:9]}"] if twice else [])


def _repeated(lines: list[Line]) -> Iterator[str]:
    """Where a job was told to end, and saved, and its next run did not go on right behind that."""
    saved = {line["run"]: (line["round"], line["step"]) for line in lines if line["what"] == "leaves"}
    for run, (world, step) in saved.items():
        # In that world: what was committed in an earlier one may have been taken back.
        there = [line for line in lines if (line["run"], line["round"]) == (run, world)]
        done = [line["step"] for line in there if line["what"] == "commits"]
        follows = [line["step"] for line in lines if line["what"] == "takes" and line["run"] == run + 1]
        if done and max(done) != step - 1:
            yield f"run {run} saved step {step}, and had committed {max(done) + 1}"
        if follows and min(follows) != step:
            yield f"run {run} saved step {step}, and the next one went on from {min(follows)}"
