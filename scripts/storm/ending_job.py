"""Real agents and workers that end in any order, and are compared with the model after each event."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from local_cluster import LocalCluster, Node, alive, free_port, listens, softrun_command
from storm.endings import HARD, Model, Worker, draw_event, draw_job
from storm.job import Job

TRAINER = Path(__file__).parent / "trainers" / "endings.py"
STANDS_S = 0.8
"""So long it must stay as the model says. It is longer than a failure waits for the death of a peer that excuses it."""
CODES = (1, 7, -signal.SIGKILL, -signal.SIGSEGV)


class EndingJob(Job):
    """Three nodes, whose workers finish and fail, and which are told to end and killed."""

    NAME = "endings"

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        super().__init__(cluster, seed)
        self._drawn = draw_job(self.draw)
        self._model = Model(self._drawn)
        self._directory = cluster.directory / self.NAME
        self._directory.mkdir()
        self._nodes: list[Node] = []
        self.verdict.what = f"{self._drawn}"

    def play(self) -> None:
        self._start()
        try:
            self._compare()
            while self._model.up:
                what, at = draw_event(self.draw, self._model)
                self.verdict.faults.append(f"{what} {at.node}/{at.local_rank}")
                self._befall(what, at)
                self._model.event(what, at)
                self._compare()
        except TimeoutError as error:
            self.fails(error)
        self.verdict.tally = {"starts": self._model.starts.total()}
        self.keep_story()

    def _start(self) -> None:
        hard, port = self._drawn.policy == HARD, free_port()
        for node in range(self._drawn.nodes):
            command = softrun_command(
                f"--restart_policy={'hard' if hard else 'soft'}",
                *([] if hard else [f"--worker_failure={self._drawn.policy}"]),
                f"--nnodes={self._drawn.least}:{self._drawn.nodes}",
                f"--nproc_per_node={self._drawn.nproc}",
                f"--max_restarts={self._drawn.restarts}",
                "--rdzv_backend=c10d",
                f"--rdzv_endpoint=127.0.0.1:{port}",
                f"--rdzv_id={self.NAME}{self.verdict.seed}",
                "--rdzv_conf=last_call_timeout=20",
                "--no_warm_start",
                script=TRAINER,
                args=(str(self._directory), "hard" if hard else "soft"),
            )
            self._nodes.append(self.cluster.start(f"n{node}", command, {"ENDINGS_NODE": str(node)}))
            if node == 0:
                self.cluster.wait_for("the first node listens", lambda: listens(port))

    def _befall(self, what: str, at: Worker) -> None:
        node = self._nodes[at.node]
        match what:
            case "finish" | "fail":
                code = 0 if what == "finish" else self.draw.choice(CODES)
                order = self._directory / f"{at.node}-{at.local_rank}.{self._model.starts[at]}.order"
                order.with_suffix(".new").write_text(str(code))
                order.with_suffix(".new").rename(order)
            case "end":
                node.signal(signal.SIGTERM)
            case "kill":
                node.kill()

    def _compare(self) -> None:
        """Wait until all is as the model says, and look whether it stays so."""
        try:
            self.cluster.wait_for("all is as the model says", lambda: not self._differences())
        except TimeoutError:
            raise TimeoutError(self._differences()) from None
        until = time.monotonic() + STANDS_S
        self.cluster.wait_for("it stays so", lambda: self._differences() or time.monotonic() >= until)
        if differences := self._differences():
            raise TimeoutError(differences)

    def _differences(self) -> str:
        model, starts = self._model, self._starts()
        codes = {at: code for at, node in enumerate(self._nodes) if (code := node.process.poll()) is not None}
        works = {worker for worker, pids in starts.items() if alive(pids[-1])}
        counts = {worker: len(pids) for worker, pids in starts.items()}
        if (codes, works, counts) == (model.code, model.works, model.starts):
            return ""
        return f"{codes} {sorted(works)} {counts}, not {model.code} {sorted(model.works)} {dict(model.starts)}"

    def _starts(self) -> dict[Worker, list[int]]:
        """The process ids of each worker, in the order of its starts."""
        starts: dict[Worker, list[int]] = {}
        for path in sorted(self._directory.iterdir()):
            place, number = path.name.split(".", 1)
            if number.isdigit():
                node, _, local_rank = place.partition("-")
                starts.setdefault(Worker(int(node), int(local_rank)), []).append(int(path.read_text()))
        return starts
